"""The long fault runs behind ``./dev chaos``: one module a run; ``rigs`` and ``support`` hold what they are made of."""
