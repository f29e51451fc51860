"""What a real peer does in a round, and how a run ends."""
