"""Starts promised for later: what will be free when, and what a promise leaves for those who come behind it."""
