"""Options about the client: the region, the endpoint, and the keys, which show nowhere."""

from __future__ import annotations

import pickle

import pytest

from connectors.core.errors import ConnectorError, OptionError
from connectors.kinesis.options.client import client_options
from connectors.kinesis.options.source import KinesisReadOptions, parse_read_options

ARN = "arn:aws:kinesis:eu-west-1:123456789012:stream/orders"


def parse(streaming: bool | None = None, environ: dict[str, str] | None = None, **raw: str) -> KinesisReadOptions:
    options = raw if "streamARN" in raw else {"streamName": "orders"} | raw
    return parse_read_options(options, environ or {}, streaming=streaming)


@pytest.mark.parametrize("name", ["endpointUrl", "stsEndpoint"])
def test_plain_http_to_another_machine_needs_allow_insecure(name: str) -> None:
    for url in ("http://kinesis.example:4567", "http://10.0.0.1", "http://127.0.0.1.example"):
        with pytest.raises(OptionError, match=rf"OPTION_CONFLICT.*option {name} .*allowInsecure=true"):
            parse(**{name: url})
        assert parse(**{name: url, "allowInsecure": "true"}).allow_insecure
    for url in ("http://127.0.0.2:1", "http://[::1]:1", "http://localhost", "http://a.localhost", "https://10.0.0.1"):
        parse(**{name: url})


# The region


@pytest.mark.parametrize(
    ("raw", "environ", "region"),
    [
        ({}, {}, None),
        ({"region": "eu-north-1"}, {"AWS_REGION": "us-west-2"}, "eu-north-1"),
        ({}, {"AWS_REGION": "us-west-2", "AWS_DEFAULT_REGION": "us-west-1"}, "us-west-2"),
        ({}, {"AWS_DEFAULT_REGION": "us-west-1"}, "us-west-1"),
        ({"streamARN": ARN}, {"AWS_REGION": "us-west-2"}, "eu-west-1"),
        ({"endpointUrl": "https://kinesis.ap-south-1.amazonaws.com"}, {"AWS_REGION": "us-west-2"}, "ap-south-1"),
        ({"endpointUrl": "https://vpce-1-2.kinesis.eu-west-3.vpce.amazonaws.com"}, {}, "eu-west-3"),
        ({"endpointUrl": "http://127.0.0.1:4567"}, {}, "us-east-1"),
        ({"endpointUrl": "http://127.0.0.1:4567", "profile": "p"}, {}, None),
    ],
)
def test_where_the_region_comes_from(raw: dict[str, str], environ: dict[str, str], region: str | None) -> None:
    assert parse(environ=environ, **raw).region == region


# Secrets


def test_29_no_secret_prints_and_tasks_get_them_all_the_same() -> None:
    environ = {"KEY": "AKIAVERYSECRETKEY"}
    options = parse(
        environ=environ,
        awsAccessKey="env:KEY",
        awsSecretKey="shhh-secret",
        awsSessionToken="shhh-token",
        roleArn="arn:aws:iam::123456789012:role/reader",
        roleExternalId="shhh-external",
    )
    client = pickle.loads(pickle.dumps(client_options(options)))
    assert client == client_options(options)
    assert client.access_key is not None
    assert client.access_key.reveal() == "AKIAVERYSECRETKEY"
    for text in (repr(options), str(options), repr(client)):
        assert "AKIAVERY" not in text
        assert "shhh" not in text


def test_29_no_error_shows_a_secret() -> None:
    with pytest.raises(ConnectorError) as caught:
        parse(awsAccessKey="AKIAVERYSECRETKEY", awsaccesskeyid="AKIAOTHERSECRET", awsSecretKey="shhh")
    assert "SECRET" not in str(caught.value)
