"""A package, so that `tests.servers` and `tests.chaos.*` are found here and in no installed package."""
