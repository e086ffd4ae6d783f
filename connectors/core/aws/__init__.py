"""What connectors and registries of AWS share: addresses of services, credentials, and the meaning of errors."""
