"""The agent of a node: it starts and stops tasks as the server orders, and reports their state."""
