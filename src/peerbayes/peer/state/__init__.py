"""What a peer keeps on disk."""
