"""What peers do in a round, for the simulator and for real peers alike."""
