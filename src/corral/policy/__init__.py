"""What should happen (pure): a policy is a function from a snapshot to a plan. Composed of parts, found by name."""
