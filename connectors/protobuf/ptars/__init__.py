"""The fast codec, over ptars."""
