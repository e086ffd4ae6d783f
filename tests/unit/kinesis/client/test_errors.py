"""Each error of the service by name: whether a retry may help, held to botocore's model of the service."""

from __future__ import annotations

import botocore.session
import pytest
from botocore.retries.standard import ThrottledRetryableChecker, TransientRetryableChecker

from connectors.core.errors import ServiceUnavailableError
from connectors.kinesis.client.errors import service_error

OPERATIONS = {
    "kinesis": [
        "DescribeStreamSummary",
        "ListShards",
        "GetShardIterator",
        "GetRecords",
        "SubscribeToShard",
        "PutRecord",
        "PutRecords",
        "DescribeStreamConsumer",
        "RegisterStreamConsumer",
        "DeregisterStreamConsumer",
    ],
    "sts": ["AssumeRole", "AssumeRoleWithWebIdentity"],
}
TRANSIENT_OF_THE_MODEL = {
    "ProvisionedThroughputExceededException",
    "LimitExceededException",
    "InternalFailureException",
    "KMSThrottlingException",
    "ThrottlingException",
    "ExpiredIteratorException",
    "ExpiredNextTokenException",
    "ResourceInUseException",
    "IDPCommunicationError",
}


def _errors() -> list[tuple[str, str]]:
    session = botocore.session.Session()
    return [
        (operation, shape.metadata.get("error", {}).get("code", shape.name))
        for service, operations in OPERATIONS.items()
        for operation in operations
        for shape in session.get_service_model(service).operation_model(operation).error_shapes
    ]


@pytest.mark.parametrize(("operation", "name"), _errors())
def test_each_error_of_the_model_is_known_and_transient_if_a_retry_may_help(operation: str, name: str) -> None:
    error = service_error(operation, "orders", {"Error": {"Code": name}, "ResponseMetadata": {"HTTPStatusCode": 400}})
    assert error.code != "KINESIS_CALL_FAILED"
    assert error.action
    assert error.transient == (name in TRANSIENT_OF_THE_MODEL)


@pytest.mark.parametrize(
    "name",
    sorted({*ThrottledRetryableChecker._THROTTLED_ERROR_CODES, *TransientRetryableChecker._TRANSIENT_ERROR_CODES}),
)
def test_what_botocore_retries_by_name_is_transient(name: str) -> None:
    error = service_error(
        "ListShards", "orders", {"Error": {"Code": name}, "ResponseMetadata": {"HTTPStatusCode": 400}}
    )
    assert isinstance(error, ServiceUnavailableError)


@pytest.mark.parametrize(("status", "transient"), [(429, True), (500, True), (503, True), (400, False), (413, False)])
def test_the_status_decides_where_nobody_knows_the_name(status: int, transient: bool) -> None:
    response = {"Error": {"Code": "SomethingNew"}, "ResponseMetadata": {"HTTPStatusCode": status}}
    assert service_error("ListShards", "orders", response).transient == transient


LIMIT = {"Error": {"Code": "LimitExceededException", "Message": "Rate exceeded"}, "ResponseMetadata": {}}


@pytest.mark.parametrize("operation", OPERATIONS["kinesis"])
def test_only_the_calls_that_min_fetch_period_is_about_name_it_when_throttled(operation: str) -> None:
    error = service_error(operation, "orders", LIMIT)
    assert error.code == "KINESIS_THROTTLED"
    assert ("minFetchPeriod" in error.action) == (operation in {"GetRecords", "GetShardIterator"})


def test_a_quota_of_consumers_is_no_throttling() -> None:
    quota = {"Error": {"Code": "LimitExceededException", "Message": "20 consumers"}, "ResponseMetadata": {}}
    assert service_error("RegisterStreamConsumer", "orders", quota).code == "KINESIS_CONSUMER_LIMIT"
    for operation in set(OPERATIONS["kinesis"]) - {"RegisterStreamConsumer"}:
        assert service_error(operation, "orders", quota).code == "KINESIS_THROTTLED"
