"""Commands about batching queues."""
