"""Where the journal is kept, and what can be looked up in it."""
