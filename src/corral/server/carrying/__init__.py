"""Fleets at work: carriers are driven until there are the nodes that are wanted."""
