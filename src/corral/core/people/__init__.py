"""Who may act: users, roles, tokens, secrets by name."""
