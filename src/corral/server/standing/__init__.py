"""Several servers on one database: one leads; the others follow, answer what can be read, and take over."""
