import com.google.common.util.concurrent.ListenableFuture;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import software.amazon.awssdk.auth.credentials.AwsBasicCredentials;
import software.amazon.awssdk.auth.credentials.StaticCredentialsProvider;
import software.amazon.kinesis.producer.KinesisProducer;
import software.amazon.kinesis.producer.KinesisProducerConfiguration;
import software.amazon.kinesis.producer.UserRecordResult;

/**
 * Amazon's KPL: "PORT STREAM AGGREGATION FOLDER", where AGGREGATION is true or false, and FOLDER takes its program.
 *
 * <p>Each line of input is "KEY HASH_KEY DATA", with key and data in base64 and "-" for no hash key; each record that was
 * acknowledged becomes "SHARD SEQUENCE_NUMBER", in the order of the input. The server has TLS with any certificate.
 */
public class KinesisProducerClient {
    private static final int MOST_UNDER_WAY = 2000;
    private static final String HOST = "127.0.0.1";

    public static void main(String[] words) throws Exception {
        long port = Long.parseLong(words[0]);
        var credentials = StaticCredentialsProvider.create(AwsBasicCredentials.create("AKIAKPL", "secret"));
        var settings =
                new KinesisProducerConfiguration()
                        .setCredentialsProvider(credentials)
                        .setRegion("us-east-1")
                        .setKinesisEndpoint(HOST)
                        .setKinesisPort(port)
                        .setStsEndpoint(HOST)
                        .setStsPort(port)
                        .setCloudwatchEndpoint(HOST)
                        .setCloudwatchPort(port)
                        .setVerifyCertificate(false)
                        .setMetricsLevel("none")
                        .setLogLevel("warning")
                        .setTempDirectory(words[3])
                        .setAggregationEnabled(Boolean.parseBoolean(words[2]))
                        .setRecordMaxBufferedTime(1_000)
                        .setRecordTtl(120_000);
        var producer = new KinesisProducer(settings);
        List<ListenableFuture<UserRecordResult>> results = new ArrayList<>();
        var input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String[] fields = line.split("\t", -1);
            String key = new String(Base64.getDecoder().decode(fields[0]), StandardCharsets.UTF_8);
            String hashKey = fields[1].equals("-") ? null : fields[1];
            ByteBuffer data = ByteBuffer.wrap(Base64.getDecoder().decode(fields[2]));
            while (producer.getOutstandingRecordsCount() > MOST_UNDER_WAY) {
                Thread.sleep(1);
            }
            results.add(producer.addUserRecord(words[1], key, hashKey, data));
        }
        producer.flushSync();
        for (var each : results) {
            var result = each.get();
            System.out.println(result.getShardId() + "\t" + result.getSequenceNumber());
        }
        producer.destroy();
    }
}
