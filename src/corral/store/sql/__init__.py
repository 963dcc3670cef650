"""What the journals on SQL databases share: rows, lookups, the writer thread. ``sqlite`` and ``postgres`` use it."""
