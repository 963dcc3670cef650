"""What the journals on SQL databases share: rows, look-ups, the thread that writes. Dialects are beside it."""
