"""Laws and cases of the batcher."""
