import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import org.apache.avro.Schema;
import org.apache.avro.generic.GenericData;
import org.apache.avro.generic.GenericDatumReader;
import org.apache.avro.generic.GenericDatumWriter;
import org.apache.avro.generic.GenericFixed;
import org.apache.avro.generic.IndexedRecord;
import org.apache.avro.io.DecoderFactory;
import org.apache.avro.io.EncoderFactory;
import org.apache.avro.util.Utf8;

/**
 * Java's Avro: reads messages, and writes what it has read again.
 *
 * <p>Lines of input are "schemas WRITER READER" for all lines after it, and "read MESSAGE"; but for the first word they
 * are in base64. A message gives a line of output: "value JSON MESSAGE", with the message that Java writes by the
 * reader's schema, lists and maps in blocks that have their sizes; "error CLASS"; or "refused CLASS" if Java does not
 * parse one of the schemas. In the JSON, text and bytes are in hex, floats are their bits, records are lists, maps are
 * lists of pairs, and a value of a union is a pair of the number of its branch and the value.
 */
public class AvroClient {
    private static final EncoderFactory BLOCKS = new EncoderFactory().configureBlockSize(64);

    private static Schema reader;
    private static GenericDatumReader<Object> reading;
    private static GenericDatumWriter<Object> writing;
    private static String refusal;

    public static void main(String[] words) throws Exception {
        var input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String[] fields = line.split("\t", -1);
            if (fields[0].equals("schemas")) {
                choose(fields[1], fields[2]);
            } else {
                System.out.println(read(Base64.getDecoder().decode(fields[1])));
            }
        }
    }

    private static void choose(String writer, String reader) {
        refusal = null;
        try {
            AvroClient.reader = parsed(reader);
            reading = new GenericDatumReader<>(parsed(writer), AvroClient.reader);
            writing = new GenericDatumWriter<>(AvroClient.reader);
        } catch (RuntimeException error) {
            refusal = error.getClass().getSimpleName();
        }
    }

    private static Schema parsed(String field) {
        return new Schema.Parser().parse(new String(Base64.getDecoder().decode(field), StandardCharsets.UTF_8));
    }

    private static String read(byte[] message) throws IOException {
        if (refusal != null) {
            return "refused\t" + refusal;
        }
        Object value;
        try {
            value = reading.read(null, DecoderFactory.get().binaryDecoder(message, null));
        } catch (Exception | OutOfMemoryError error) {
            return "error\t" + error.getClass().getSimpleName();
        }
        var out = new ByteArrayOutputStream();
        var encoder = BLOCKS.blockingBinaryEncoder(out, null);
        writing.write(value, encoder);
        encoder.flush();
        return "value\t" + json(reader, value) + "\t" + Base64.getEncoder().encodeToString(out.toByteArray());
    }

    private static String json(Schema schema, Object value) {
        return switch (schema.getType()) {
            case NULL -> "null";
            case BOOLEAN, INT, LONG -> value.toString();
            case FLOAT -> Integer.toString(Float.floatToRawIntBits((Float) value));
            case DOUBLE -> Long.toString(Double.doubleToRawLongBits((Double) value));
            case STRING -> hex(text(value));
            case BYTES -> hex(bytes((ByteBuffer) value));
            case FIXED -> hex(((GenericFixed) value).bytes());
            case ENUM -> hex(value.toString().getBytes(StandardCharsets.UTF_8));
            case ARRAY -> array(schema.getElementType(), (Iterable<?>) value);
            case MAP -> map(schema.getValueType(), (Map<?, ?>) value);
            case RECORD -> record(schema, (IndexedRecord) value);
            case UNION -> {
                int branch = GenericData.get().resolveUnion(schema, value);
                yield "[" + branch + "," + json(schema.getTypes().get(branch), value) + "]";
            }
        };
    }

    private static String array(Schema items, Iterable<?> values) {
        List<String> parts = new ArrayList<>();
        for (Object each : values) {
            parts.add(json(items, each));
        }
        return "[" + String.join(",", parts) + "]";
    }

    private static String map(Schema values, Map<?, ?> entries) {
        List<String> parts = new ArrayList<>();
        for (Map.Entry<?, ?> each : entries.entrySet()) {
            parts.add("[" + hex(text(each.getKey())) + "," + json(values, each.getValue()) + "]");
        }
        return "[" + String.join(",", parts) + "]";
    }

    private static String record(Schema schema, IndexedRecord value) {
        List<String> parts = new ArrayList<>();
        for (Schema.Field each : schema.getFields()) {
            parts.add(json(each.schema(), value.get(each.pos())));
        }
        return "[" + String.join(",", parts) + "]";
    }

    private static byte[] text(Object value) {
        if (value instanceof Utf8 raw) {
            return java.util.Arrays.copyOf(raw.getBytes(), raw.getByteLength());
        }
        return value.toString().getBytes(StandardCharsets.UTF_8);
    }

    private static byte[] bytes(ByteBuffer buffer) {
        byte[] made = new byte[buffer.remaining()];
        buffer.duplicate().get(made);
        return made;
    }

    private static String hex(byte[] data) {
        return "\"" + HexFormat.of().formatHex(data) + "\"";
    }
}
