"""How requests come in and answers go out: the door, its bounds, and what a handler is given. Knows no handler."""
