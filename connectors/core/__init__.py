"""What all connectors share. Nothing here imports a vendor's SDK."""
