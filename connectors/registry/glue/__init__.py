"""The AWS Glue Schema Registry: options, client, and the frames of its serializers."""
