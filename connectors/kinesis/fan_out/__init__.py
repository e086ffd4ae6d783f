"""Reading from Kinesis with enhanced fan-out, through a spool."""
