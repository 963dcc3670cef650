"""``corral sim``: what would happen to a workload on some machines under some policies."""
