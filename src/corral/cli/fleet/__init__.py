"""Commands about many machines: the agent of a node, how a machine joins, and a fleet to try things out on."""
