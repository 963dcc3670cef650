"""REST under /v1: the table of routes, the HTTP endpoint every request passes, and the handlers."""
