"""What members agree on before the first round, by exact sums over a spanning tree."""
