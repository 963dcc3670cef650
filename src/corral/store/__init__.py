"""The storage of the journal, and lookups in it."""
