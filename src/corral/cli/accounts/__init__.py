"""Commands about users, roles, tokens and secrets."""
