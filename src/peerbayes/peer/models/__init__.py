"""Models of a peer over time: versions in its folder, and a card of each."""
