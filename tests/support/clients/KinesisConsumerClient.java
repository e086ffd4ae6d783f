import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Base64;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import software.amazon.awssdk.auth.credentials.AwsBasicCredentials;
import software.amazon.awssdk.auth.credentials.StaticCredentialsProvider;
import software.amazon.awssdk.awscore.client.builder.AwsClientBuilder;
import software.amazon.awssdk.http.Protocol;
import software.amazon.awssdk.http.nio.netty.NettyNioAsyncHttpClient;
import software.amazon.awssdk.regions.Region;
import software.amazon.awssdk.services.cloudwatch.CloudWatchAsyncClient;
import software.amazon.awssdk.services.dynamodb.DynamoDbAsyncClient;
import software.amazon.awssdk.services.kinesis.KinesisAsyncClient;
import software.amazon.kinesis.common.ConfigsBuilder;
import software.amazon.kinesis.common.InitialPositionInStream;
import software.amazon.kinesis.common.InitialPositionInStreamExtended;
import software.amazon.kinesis.coordinator.Scheduler;
import software.amazon.kinesis.exceptions.InvalidStateException;
import software.amazon.kinesis.exceptions.ShutdownException;
import software.amazon.kinesis.lifecycle.events.InitializationInput;
import software.amazon.kinesis.lifecycle.events.LeaseLostInput;
import software.amazon.kinesis.lifecycle.events.ProcessRecordsInput;
import software.amazon.kinesis.lifecycle.events.ShardEndedInput;
import software.amazon.kinesis.lifecycle.events.ShutdownRequestedInput;
import software.amazon.kinesis.metrics.NullMetricsFactory;
import software.amazon.kinesis.processor.RecordProcessorCheckpointer;
import software.amazon.kinesis.processor.ShardRecordProcessor;
import software.amazon.kinesis.processor.SingleStreamTracker;
import software.amazon.kinesis.retrieval.RetrievalSpecificConfig;
import software.amazon.kinesis.retrieval.fanout.FanOutConfig;
import software.amazon.kinesis.retrieval.polling.PollingConfig;

/**
 * Amazon's KCL: "KINESIS_URL DYNAMODB_URL STREAM COUNT MODE", where MODE is polling or efo.
 *
 * <p>Each record that it takes becomes "SHARD SEQUENCE_NUMBER SUB_SEQUENCE_NUMBER KEY HASH_KEY DATA", with key and data
 * in base64 and "-" for no hash key. It ends when there were COUNT, and no more came for a while.
 */
public class KinesisConsumerClient {
    private static final Region REGION = Region.US_EAST_1;
    private static final long PATIENCE_MILLIS = 120_000;
    private static final long QUIET_MILLIS = 2_000;
    private static final long POLL_MILLIS = 200;
    private static final AtomicInteger TAKEN = new AtomicInteger();

    public static void main(String[] words) throws Exception {
        System.setProperty("aws.cborEnabled", "false");
        System.setProperty("aws.disableEc2Metadata", "true");
        boolean subscribes = words[4].equals("efo");
        var http =
                NettyNioAsyncHttpClient.builder()
                        .protocol(subscribes ? Protocol.HTTP2 : Protocol.HTTP1_1)
                        .maxConcurrency(100)
                        .build();
        var kinesis = at(KinesisAsyncClient.builder().httpClient(http), words[0]).build();
        var dynamo = at(DynamoDbAsyncClient.builder(), words[1]).build();
        var cloudWatch = at(CloudWatchAsyncClient.builder(), words[1]).build();
        String stream = words[2];
        String application = "kcl-" + stream;
        var first = InitialPositionInStreamExtended.newInitialPosition(InitialPositionInStream.TRIM_HORIZON);
        var configs =
                new ConfigsBuilder(
                        new SingleStreamTracker(stream, first),
                        application,
                        kinesis,
                        dynamo,
                        cloudWatch,
                        "worker",
                        Shard::new);
        RetrievalSpecificConfig retrieval =
                subscribes
                        ? new FanOutConfig(kinesis).streamName(stream).applicationName(application)
                        : new PollingConfig(stream, kinesis).idleTimeBetweenReadsInMillis(POLL_MILLIS);
        var leases = configs.leaseManagementConfig().failoverTimeMillis(2_000).shardSyncIntervalMillis(500);
        leases.workerUtilizationAwareAssignmentConfig().disableWorkerMetrics(true);
        var scheduler =
                new Scheduler(
                        configs.checkpointConfig(),
                        configs.coordinatorConfig().parentShardPollIntervalMillis(500),
                        leases,
                        configs.lifecycleConfig(),
                        configs.metricsConfig().metricsFactory(new NullMetricsFactory()),
                        configs.processorConfig(),
                        configs.retrievalConfig().retrievalSpecificConfig(retrieval));
        var running = new Thread(scheduler, "scheduler");
        running.setDaemon(true);
        running.start();
        waitFor(Integer.parseInt(words[3]));
        scheduler.startGracefulShutdown().get(30, TimeUnit.SECONDS);
        System.out.flush();
        System.exit(0);
    }

    private static <B extends AwsClientBuilder<B, C>, C> B at(B builder, String url) {
        var credentials = StaticCredentialsProvider.create(AwsBasicCredentials.create("AKIAKCL", "secret"));
        return builder.endpointOverride(URI.create(url)).region(REGION).credentialsProvider(credentials);
    }

    private static void waitFor(int count) throws InterruptedException {
        long end = System.nanoTime() + Duration.ofMillis(PATIENCE_MILLIS).toNanos();
        while (TAKEN.get() < count && System.nanoTime() < end) {
            Thread.sleep(50);
        }
        int before;
        do {
            before = TAKEN.get();
            Thread.sleep(QUIET_MILLIS);
        } while (TAKEN.get() > before);
    }

    /** Prints what one shard brings, and checkpoints it. */
    private static final class Shard implements ShardRecordProcessor {
        private String name;

        @Override
        public void initialize(InitializationInput input) {
            name = input.shardId();
        }

        @Override
        public void processRecords(ProcessRecordsInput input) {
            for (var record : input.records()) {
                byte[] data = new byte[record.data().remaining()];
                record.data().duplicate().get(data);
                String hashKey = record.explicitHashKey() == null ? "-" : record.explicitHashKey();
                String line =
                        String.join(
                                "\t",
                                name,
                                record.sequenceNumber(),
                                Long.toString(record.subSequenceNumber()),
                                Base64.getEncoder()
                                        .encodeToString(record.partitionKey().getBytes(StandardCharsets.UTF_8)),
                                hashKey,
                                Base64.getEncoder().encodeToString(data));
                System.out.println(line);
            }
            TAKEN.addAndGet(input.records().size());
        }

        private static void checkpoint(RecordProcessorCheckpointer checkpointer) {
            try {
                checkpointer.checkpoint();
            } catch (InvalidStateException | ShutdownException error) {
                throw new IllegalStateException(error);
            }
        }

        @Override
        public void leaseLost(LeaseLostInput input) {}

        @Override
        public void shardEnded(ShardEndedInput input) {
            checkpoint(input.checkpointer());
        }

        @Override
        public void shutdownRequested(ShutdownRequestedInput input) {
            checkpoint(input.checkpointer());
        }
    }
}
