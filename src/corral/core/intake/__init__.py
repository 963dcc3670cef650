"""Commands of users: checked and turned into events, or refused with a reason."""
