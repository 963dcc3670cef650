"""Commands about people: users, roles, tokens, secrets."""
