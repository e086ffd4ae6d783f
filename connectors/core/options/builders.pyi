# Generated from the declarations by ./dev docs.
from collections.abc import Mapping
from typing import Literal, TypedDict, Unpack

__all__ = ["kafka_py", "kinesis", "pubsub"]

class _KafkaOptions(TypedDict, total=False):
    assign: str
    availableNow: bool
    commitOffsetsToGroup: str
    dedupHeaders: bool
    deliveryGuarantee: Literal["at_least_once", "exactly_once"]
    endingOffsets: str
    endingOffsetsByTimestamp: str
    endingTimestamp: str
    failOnDataLoss: bool
    groupIdPrefix: str
    includeHeaders: bool
    markerTopic: str
    maxOffsetsPerTrigger: int
    maxRecordsPerPartition: int
    maxTriggerDelay: str
    minOffsetsPerTrigger: int
    minPartitions: int
    onMissingMarker: Literal["fail", "write"]
    pushDownPredicate: bool
    retryTimeout: str
    startingOffsets: str
    startingOffsetsByTimestamp: str
    startingOffsetsByTimestampStrategy: Literal["error", "latest"]
    startingTimestamp: str
    subscribe: str
    subscribePattern: str
    tokenProvider: str
    topic: str
    transactionalIdPrefix: str
    txnAppId: str
    txnVersion: int
    writeTimestamps: bool

class _KinesisOptions(TypedDict, total=False):
    aggregation: bool
    allowInsecure: bool
    availableNow: bool
    awsAccessKey: str
    awsSecretKey: str
    awsSessionToken: str
    consumerARN: str
    consumerMode: Literal["polling", "efo"]
    consumerName: str
    credentialProvider: str
    deaggregate: Literal["auto", "false"]
    endingPosition: str
    endpointUrl: str
    failOnDataLoss: bool
    fetchers: int
    idleFetchPeriod: str
    initialPosition: str
    maxBytesPerTrigger: int | str
    maxFetchRate: float
    maxRecordsPerFetch: int
    maxRecordsPerTrigger: int
    maxRetryInterval: str
    maxSpoolBytes: int | str
    minFetchPeriod: str
    minPartitions: int
    numRetries: int
    ordered: bool
    profile: str
    pushDownPredicate: bool
    region: str
    requireConsumerDeregistration: bool
    retryTimeout: str
    roleArn: str
    roleExternalId: str
    roleSessionName: str
    shardFetchInterval: str
    spoolLocation: str
    streamName: str
    stsEndpoint: str

class _PubsubOptions(TypedDict, total=False):
    allowInsecure: bool
    availableNow: bool
    availableNowMaxWait: str
    availableNowQuiet: str
    clientEmail: str
    clientId: str
    credentialProvider: str
    credentialsFile: str
    dedupAttribute: str
    dedupEpoch: int
    dedupHorizon: str
    endingPosition: str
    endpoint: str
    failOnDataLoss: bool
    fetch: Literal["driver", "external"]
    fetchers: int
    idAttribute: str
    maxBytesPerTrigger: int | str
    maxFetchPeriod: str
    maxOutstandingBytes: int | str
    maxPartitions: int
    maxReaderAge: str
    maxRecordsPerFetch: int
    maxRecordsPerTrigger: int
    maxSpoolBytes: int | str
    partitionBytes: int | str
    privateKey: str
    privateKeyId: str
    projectId: str
    pushDownPredicate: bool
    retryTimeout: str
    schemaMode: Literal["native", "databricks"]
    segmentCompression: Literal["none", "lz4"]
    spoolCredentialProvider: str
    spoolCredentialsFile: str
    spoolEndpoint: str
    spoolKeyId: str
    spoolLocation: str
    spoolRegion: str
    spoolRetention: str
    spoolSecret: str
    spoolSessionToken: str
    startTimeout: str
    startingPosition: str
    startingSnapshot: str
    startingTimestamp: str
    streams: int
    subscriptionId: str
    takeOver: bool
    topicId: str

def kafka_py(settings: Mapping[str, object] | None = None, /, **options: Unpack[_KafkaOptions]) -> dict[str, str]: ...
def kinesis(settings: Mapping[str, object] | None = None, /, **options: Unpack[_KinesisOptions]) -> dict[str, str]: ...
def pubsub(settings: Mapping[str, object] | None = None, /, **options: Unpack[_PubsubOptions]) -> dict[str, str]: ...
