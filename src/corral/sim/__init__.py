"""The simulator: drives the engine from a heap of simulated events instead of reports of nodes."""
