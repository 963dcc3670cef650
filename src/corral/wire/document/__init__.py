"""Documents that people write: tables of keys, readers of values, faults with paths, YAML with places.

Knows nothing of jobs or configuration: those are tables made of what is here.
"""
