"""Commands about the server on this machine: start, stop, check, its data and its configuration."""
