"""Commands about the cluster: queues, nodes, usage and events."""
