"""What connectors and registries of AWS share: where a service is, by which credentials, and what its errors mean."""
