import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Future;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Kafka's own client, told by lines with tabs between their fields; bytes are in base64, and "-" is null.
 *
 * <p>"produce BOOTSTRAP TOPIC CODEC" reads "begin|commit|abort|flush PRODUCER" and "send PRODUCER INDEX PARTITION TIME
 * KEY VALUE [NAME VALUE]..."; the producer "plain" has no transactions. Each record that was acknowledged becomes
 * "INDEX PARTITION OFFSET TIME".
 *
 * <p>"consume BOOTSTRAP TOPIC ISOLATION" writes "PARTITION OFFSET TIME TIME_TYPE KEY VALUE [NAME VALUE]..." for each
 * record up to the present ends.
 */
public class KafkaClient {
    private static final PrintStream OUT = new PrintStream(System.out, false, StandardCharsets.UTF_8);

    public static void main(String[] words) throws Exception {
        if (words[0].equals("produce")) {
            produce(words[1], words[2], words[3]);
        } else {
            consume(words[1], words[2], words[3]);
        }
        OUT.flush();
    }

    private static byte[] bytes(String field) {
        return field.equals("-") ? null : Base64.getDecoder().decode(field);
    }

    private static String field(byte[] bytes) {
        return bytes == null ? "-" : Base64.getEncoder().encodeToString(bytes);
    }

    private static KafkaProducer<byte[], byte[]> producer(
            String bootstrap, String topic, String codec, String name) {
        Map<String, Object> settings = new HashMap<>();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("compression.type", codec);
        settings.put("max.request.size", 4_000_000);
        if (!name.equals("plain")) {
            settings.put("transactional.id", topic + "-" + name);
        }
        var made = new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer());
        if (!name.equals("plain")) {
            made.initTransactions();
        }
        return made;
    }

    private static void produce(String bootstrap, String topic, String codec) throws Exception {
        Map<String, KafkaProducer<byte[], byte[]>> producers = new HashMap<>();
        Map<String, Future<RecordMetadata>> sent = new HashMap<>();
        var input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String[] fields = line.split("\t", -1);
            var producer =
                    producers.computeIfAbsent(fields[1], name -> producer(bootstrap, topic, codec, name));
            switch (fields[0]) {
                case "begin" -> producer.beginTransaction();
                case "commit" -> producer.commitTransaction();
                case "abort" -> {
                    producer.flush();
                    producer.abortTransaction();
                }
                case "flush" -> producer.flush();
                default -> sent.put(fields[2], producer.send(record(topic, fields)));
            }
        }
        for (var producer : producers.values()) {
            producer.close();
        }
        for (var each : sent.entrySet()) {
            var metadata = each.getValue().get();
            OUT.printf(
                    "%s\t%d\t%d\t%d%n",
                    each.getKey(), metadata.partition(), metadata.offset(), metadata.timestamp());
        }
    }

    private static ProducerRecord<byte[], byte[]> record(String topic, String[] fields) {
        List<Header> headers = new ArrayList<>();
        for (int place = 7; place < fields.length; place += 2) {
            String name = new String(bytes(fields[place]), StandardCharsets.UTF_8);
            headers.add(new RecordHeader(name, bytes(fields[place + 1])));
        }
        int partition = Integer.parseInt(fields[3]);
        long time = Long.parseLong(fields[4]);
        return new ProducerRecord<>(topic, partition, time, bytes(fields[5]), bytes(fields[6]), headers);
    }

    private static void consume(String bootstrap, String topic, String isolation) {
        Map<String, Object> settings = Map.of("bootstrap.servers", bootstrap, "isolation.level", isolation);
        try (var consumer =
                new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            List<TopicPartition> partitions = new ArrayList<>();
            for (var each : consumer.partitionsFor(topic)) {
                partitions.add(new TopicPartition(topic, each.partition()));
            }
            consumer.assign(partitions);
            consumer.seekToBeginning(partitions);
            var ends = consumer.endOffsets(partitions);
            while (partitions.stream().anyMatch(each -> consumer.position(each) < ends.get(each))) {
                for (var record : consumer.poll(Duration.ofMillis(200))) {
                    print(record);
                }
            }
        }
    }

    private static void print(ConsumerRecord<byte[], byte[]> record) {
        var line = new StringBuilder();
        line.append(record.partition()).append('\t').append(record.offset()).append('\t');
        line.append(record.timestamp()).append('\t').append(record.timestampType().id).append('\t');
        line.append(field(record.key())).append('\t').append(field(record.value()));
        for (var header : record.headers()) {
            line.append('\t').append(field(header.key().getBytes(StandardCharsets.UTF_8)));
            line.append('\t').append(field(header.value()));
        }
        OUT.println(line);
    }
}
