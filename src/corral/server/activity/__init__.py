"""What nodes and jobs do now, as nodes report it. Displayed only: not journaled, and no decision depends on it."""
