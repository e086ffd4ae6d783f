"""A module of a provider that raises when it is imported."""

raise RuntimeError("no vault: canary-59c0de")
