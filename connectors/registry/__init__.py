"""Schema registries, for every format that has its schemas in one: the client, its rules and caches, and the frames.

`options` says where a registry is and how to authenticate, `client` makes bounded requests, `schemas` fetches and
retains schemas, `frames` reads which schema a message was written with, `subjects` says by which subject to write. What
a schema means is the format's own.
"""
