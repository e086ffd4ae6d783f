"""The reference codec, over protobuf's own parser (upb)."""
