"""``corral sim``: simulate a workload on a cluster under one or several policies."""
