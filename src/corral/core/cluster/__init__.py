"""The nodes: their resources and topology, what is free, and what fits."""
