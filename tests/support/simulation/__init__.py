"""Deterministic histories of the spool: one seed decides every interleaving, every fault and every time.

The spool and its ledger run as they are. What surrounds them is simulated: a scheduler steps the threads, time is a
number, processes are objects, a bucket is a dictionary, and the service is a model of Pub/Sub. All of this replaces
`threading`, `time` and `secrets`, so it has a process of its own: ``python -m tests.support.simulation --seeds 0-99``.
"""
