"""What peers ask each other, over mutual TLS."""
