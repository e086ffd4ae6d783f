"""The long fault runs behind ``./dev chaos``: one module a run, and with a leading underscore what they share."""
