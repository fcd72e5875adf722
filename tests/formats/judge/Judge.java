// Reads messages as Kafka Connect does, and sends them through Debezium's transforms, as they are in Maven Central.
//
// Arguments: the formats of keys and values (json_schema, avro) and the address of Apicurio's own API. Each line of the input has a
// topic, a key and a value, in base64 or "-" for none, with tabs between. Each line of the output is a JSON object with what came out.
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

import org.apache.kafka.connect.connector.ConnectRecord;
import org.apache.kafka.connect.data.Schema;
import org.apache.kafka.connect.data.SchemaAndValue;
import org.apache.kafka.connect.header.Header;
import org.apache.kafka.connect.json.JsonConverter;
import org.apache.kafka.connect.source.SourceRecord;
import org.apache.kafka.connect.storage.Converter;
import org.apache.kafka.connect.transforms.Transformation;

import io.apicurio.registry.utils.converter.AvroConverter;
import io.debezium.transforms.ByLogicalTableRouter;
import io.debezium.transforms.ExtractChangedRecordState;
import io.debezium.transforms.ExtractNewRecordState;
import io.debezium.transforms.partitions.PartitionRouting;

public class Judge {
    private static final PrintStream OUT = new PrintStream(System.out, true, StandardCharsets.UTF_8);
    private static final JsonConverter PLAIN = new JsonConverter();

    public static void main(String[] args) throws Exception {
        PLAIN.configure(Map.of("schemas.enable", "false", "decimal.format", "NUMERIC", "converter.type", "value"));
        Converter keys = converter(args[0], args[2], true);
        Converter values = converter(args[1], args[2], false);
        Map<String, Transformation<SourceRecord>> transforms = transforms();
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] parts = line.split("\t");
            SchemaAndValue key = keys.toConnectData(parts[0], bytes(parts[1]));
            SchemaAndValue value = values.toConnectData(parts[0], bytes(parts[2]));
            List<String> found = new ArrayList<>();
            found.add("\"keySchema\":" + quoted(key.schema() == null ? null : key.schema().name()));
            found.add("\"valueSchema\":" + quoted(value.schema() == null ? null : value.schema().name()));
            found.add("\"names\":" + names(value.schema()));
            found.add("\"key\":" + json(key.schema(), key.value()));
            found.add("\"value\":" + json(value.schema(), value.value()));
            for (Map.Entry<String, Transformation<SourceRecord>> transform : transforms.entrySet()) {
                SourceRecord record = new SourceRecord(
                        Map.of(), Map.of(), parts[0], null, key.schema(), key.value(), value.schema(), value.value());
                found.add(quoted(transform.getKey()) + ":" + shown(transform.getValue(), record));
            }
            OUT.println("{" + String.join(",", found) + "}");
        }
    }

    private static Converter converter(String format, String registry, boolean isKey) {
        Converter converter = format.equals("avro") ? new AvroConverter<>() : new JsonConverter();
        Map<String, Object> settings = new HashMap<>();
        settings.put("schemas.enable", "true");
        settings.put("apicurio.registry.url", registry);
        settings.put("apicurio.registry.as-confluent", "true");
        settings.put("apicurio.registry.use-id", "contentId");
        settings.put("apicurio.registry.headers.enabled", "false");
        converter.configure(settings, isKey);
        return converter;
    }

    private static Map<String, Transformation<SourceRecord>> transforms() {
        Map<String, Transformation<SourceRecord>> found = new java.util.LinkedHashMap<>();
        found.put("extract", configured(new ExtractNewRecordState<>(),
                Map.of("delete.tombstone.handling.mode", "rewrite", "add.fields", "op,source.seq")));
        found.put("router", configured(new ByLogicalTableRouter<>(),
                Map.of("topic.regex", "(.*)users(.*)", "topic.replacement", "$1all$2", "key.field.name", "__space",
                        "key.enforce.uniqueness", "true")));
        found.put("partition", configured(new PartitionRouting<>(),
                Map.of("partition.payload.fields", "change.id", "partition.topic.num", "4")));
        found.put("changed", configured(new ExtractChangedRecordState<>(),
                Map.of("header.changed.name", "Changed", "header.unchanged.name", "Unchanged")));
        return found;
    }

    private static Transformation<SourceRecord> configured(Transformation<SourceRecord> transform, Map<String, ?> settings) {
        transform.configure(settings);
        return transform;
    }

    private static String shown(Transformation<SourceRecord> transform, SourceRecord record) {
        ConnectRecord<SourceRecord> found;
        try {
            found = transform.apply(record);
        } catch (RuntimeException error) {
            return "{\"error\":" + quoted(error.toString()) + "}";
        }
        if (found == null) {
            return "null";
        }
        List<String> headers = new ArrayList<>();
        for (Header header : found.headers()) {
            headers.add(quoted(header.key()) + ":" + quoted(String.valueOf(header.value())));
        }
        return "{\"topic\":" + quoted(found.topic()) + ",\"partition\":" + found.kafkaPartition()
                + ",\"key\":" + json(found.keySchema(), found.key()) + ",\"value\":" + json(found.valueSchema(), found.value())
                + ",\"headers\":{" + String.join(",", headers) + "}}";
    }

    /** The semantic names of a row's fields. */
    private static String names(Schema schema) {
        if (schema == null || schema.field("after") == null) {
            return "null";
        }
        List<String> found = new ArrayList<>();
        schema.field("after").schema().fields().forEach(field -> found.add(quoted(field.name()) + ":"
                + quoted(field.schema().name() == null ? field.schema().type().getName() : field.schema().name())));
        return "{" + String.join(",", found) + "}";
    }

    private static String json(Schema schema, Object value) {
        if (value == null) {
            return "null";
        }
        byte[] data = PLAIN.fromConnectData("", schema, value);
        return data == null ? "null" : new String(data, StandardCharsets.UTF_8);
    }

    private static String quoted(String text) {
        return text == null ? "null" : json(Schema.STRING_SCHEMA, text);
    }

    private static byte[] bytes(String text) {
        return text.equals("-") ? null : Base64.getDecoder().decode(text);
    }
}
