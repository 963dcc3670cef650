"""What an earlier version wrote, sent and accepted still works: recorded once by that version, never again."""
