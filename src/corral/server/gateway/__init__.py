"""The agents' own way in: a small process that keeps leases whatever the server is busy with."""
