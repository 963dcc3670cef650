"""The gateway: a small process that agents connect to. It renews leases even while the server is busy."""
