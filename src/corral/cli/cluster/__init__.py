"""Commands about what is shared: queues, machines, usage, and the record of everything."""
