"""How tasks become processes: one interface, several ways."""
