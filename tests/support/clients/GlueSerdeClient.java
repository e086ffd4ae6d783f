import com.amazonaws.services.schemaregistry.deserializers.GlueSchemaRegistryKafkaDeserializer;
import com.amazonaws.services.schemaregistry.serializers.GlueSchemaRegistryKafkaSerializer;
import com.google.protobuf.DescriptorProtos.FileDescriptorProto;
import com.google.protobuf.Descriptors.Descriptor;
import com.google.protobuf.Descriptors.FileDescriptor;
import com.google.protobuf.DynamicMessage;
import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.HashMap;
import java.util.Map;
import org.apache.avro.Schema;
import org.apache.avro.generic.GenericDatumReader;
import org.apache.avro.generic.GenericDatumWriter;
import org.apache.avro.generic.GenericRecord;
import org.apache.avro.io.DecoderFactory;
import org.apache.avro.io.EncoderFactory;
import software.amazon.awssdk.auth.credentials.AwsBasicCredentials;
import software.amazon.awssdk.auth.credentials.StaticCredentialsProvider;

/**
 * The serializers of the AWS Glue Schema Registry: "URL REGISTRY".
 *
 * <p>Lines of input are "write FORMAT NAME SCHEMA MESSAGE DATA COMPRESSION" and "read FORMAT FRAME": SCHEMA is Avro's
 * JSON or a file descriptor, MESSAGE the full name of a protobuf message, and DATA a bare message. Lines of output have
 * the frame, or the full name and the bare message. SCHEMA, MESSAGE, DATA, FRAME and all of the output are in base64.
 */
public class GlueSerdeClient {
    private static Map<String, Object> settings;
    private static final StaticCredentialsProvider KEYS =
            StaticCredentialsProvider.create(AwsBasicCredentials.create("testing", "testing"));

    public static void main(String[] words) throws Exception {
        settings = new HashMap<>();
        settings.put("endpoint", words[0]);
        settings.put("region", "us-east-1");
        settings.put("registry.name", words[1]);
        settings.put("schemaAutoRegistrationEnabled", "true");
        settings.put("avroRecordType", "GENERIC_RECORD");
        settings.put("protobufMessageType", "DYNAMIC_MESSAGE");
        var input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String[] fields = line.split("\t", -1);
            System.out.println(fields[0].equals("write") ? write(fields) : read(fields));
        }
    }

    private static String write(String[] fields) throws Exception {
        byte[] schema = Base64.getDecoder().decode(fields[3]);
        String name = new String(Base64.getDecoder().decode(fields[4]), StandardCharsets.UTF_8);
        byte[] data = Base64.getDecoder().decode(fields[5]);
        Map<String, Object> own = new HashMap<>(settings);
        own.put("dataFormat", fields[1]);
        own.put("schemaName", fields[2]);
        own.put("compression", fields[6]);
        Object value;
        if (fields[1].equals("AVRO")) {
            Schema parsed = new Schema.Parser().parse(new String(schema, StandardCharsets.UTF_8));
            value = new GenericDatumReader<GenericRecord>(parsed).read(null, DecoderFactory.get().binaryDecoder(data, null));
        } else {
            var file = FileDescriptor.buildFrom(FileDescriptorProto.parseFrom(schema), new FileDescriptor[] {});
            value = DynamicMessage.parseFrom(find(file, name), data);
        }
        return Base64.getEncoder().encodeToString(new GlueSchemaRegistryKafkaSerializer(KEYS, own).serialize("topic", value));
    }

    private static Descriptor find(FileDescriptor file, String name) {
        String inner = file.getPackage().isEmpty() ? name : name.substring(file.getPackage().length() + 1);
        String[] parts = inner.split("\\.");
        Descriptor found = file.findMessageTypeByName(parts[0]);
        for (int place = 1; place < parts.length; place++) {
            found = found.findNestedTypeByName(parts[place]);
        }
        return found;
    }

    private static String read(String[] fields) throws Exception {
        byte[] frame = Base64.getDecoder().decode(fields[2]);
        Map<String, Object> own = new HashMap<>(settings);
        own.put("dataFormat", fields[1]);
        Object value = new GlueSchemaRegistryKafkaDeserializer(KEYS, own).deserialize("topic", frame);
        String name;
        byte[] data;
        if (value instanceof GenericRecord record) {
            var out = new ByteArrayOutputStream();
            var encoder = EncoderFactory.get().directBinaryEncoder(out, null);
            new GenericDatumWriter<GenericRecord>(record.getSchema()).write(record, encoder);
            name = record.getSchema().getFullName();
            data = out.toByteArray();
        } else {
            var message = (DynamicMessage) value;
            name = message.getDescriptorForType().getFullName();
            data = message.toByteArray();
        }
        byte[] text = name.getBytes(StandardCharsets.UTF_8);
        return Base64.getEncoder().encodeToString(text) + "\t" + Base64.getEncoder().encodeToString(data);
    }
}
