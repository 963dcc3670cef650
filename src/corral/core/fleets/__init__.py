"""Machines that are lent by engines: what is wanted of them, and what has come of it."""
