"""The demonstration behind ``connectors demo``: the main job on a real server, killed in the middle, counted by ids."""
