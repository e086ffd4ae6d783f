"""Real servers that speak the wire protocols of the sources, with fault knobs; shipped, so users can test with them."""
