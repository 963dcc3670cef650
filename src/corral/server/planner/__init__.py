"""The planner: `client` starts and asks it, `process` runs it, `frames` and `answers` are the messages."""
