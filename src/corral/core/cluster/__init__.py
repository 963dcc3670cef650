"""The machines: what they have, how they are connected, what is free, and what fits."""
