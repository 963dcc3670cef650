"""The handlers of the routes. They know requests and answers as values, and nothing about HTTP."""
