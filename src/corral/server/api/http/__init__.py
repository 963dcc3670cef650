"""HTTP: the endpoint that reads requests and sends answers, its limits, and what a handler gets. Knows no handler."""
