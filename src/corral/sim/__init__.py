"""What would happen: the engine turned by a heap of events instead of by the world."""
