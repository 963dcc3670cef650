"""Names in a broker, and the configuration of its intake."""
