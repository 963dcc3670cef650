"""Publishing submissions through a broker, and what the intake of a broker sends."""
