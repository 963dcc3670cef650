"""The configuration of tasks that are pods."""
