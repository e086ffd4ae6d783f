"""What the fault runs do to each connector: loads, kills and sweeps."""
