"""High availability: several servers on one database. One leads; the others follow, serve reads, and take over."""
