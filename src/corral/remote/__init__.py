"""Tasks on many machines: the server's side of the agents."""
