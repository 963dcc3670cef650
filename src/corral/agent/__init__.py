"""The agent of a node: it makes happen what the server wants, and tells the truth about it."""
