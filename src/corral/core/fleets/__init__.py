"""Fleets: nodes that providers allocate, the wanted number and the current state."""
