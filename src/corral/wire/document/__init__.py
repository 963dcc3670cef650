"""Documents that users write: tables of keys, readers of values, errors with paths, YAML with positions.

Does not know jobs or configuration: those are tables that use this package.
"""
