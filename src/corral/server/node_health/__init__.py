"""Health of nodes by comparison: how gangs end on each node, compared with the others."""
