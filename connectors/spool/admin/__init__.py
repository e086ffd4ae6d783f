"""Inspecting, verifying and repairing a spool from the command line."""
