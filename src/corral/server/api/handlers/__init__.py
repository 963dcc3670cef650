"""What stands behind each route. Handlers know requests and answers as values, and nothing of how they travel."""
