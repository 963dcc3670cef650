"""Commands about nodes: the agent, joining, fleets from providers, and a test cluster on one machine."""
