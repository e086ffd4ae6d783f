"""``./dev release``: builds a release, checks it, tries it, and writes what goes with it. It publishes nothing."""
