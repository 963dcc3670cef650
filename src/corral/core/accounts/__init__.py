"""Users, roles, tokens, and secrets by name."""
