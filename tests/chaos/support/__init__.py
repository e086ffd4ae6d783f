"""What all fault runs share: trials, the record, processes, Spark and the sink they check."""
