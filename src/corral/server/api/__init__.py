"""REST under /v1: a table of routes, the door every request goes through, and what stands behind each route."""
