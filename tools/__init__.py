"""What `./dev` runs: lock files, descriptor sets, pages of the reference."""
