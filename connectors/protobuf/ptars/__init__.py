"""The fast codec: ptars."""
