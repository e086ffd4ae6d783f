"""JSON Schemas: parsed with what they refer to, what they say of a value, and the columns for it."""
