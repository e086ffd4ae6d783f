"""The demonstration behind ``connectors demo``: queries on a real server, killed on the way, each message counted."""
