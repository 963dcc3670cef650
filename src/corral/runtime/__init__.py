"""How tasks become processes: one interface (`base`) and its implementations.

Nothing is imported here: the supervisors of tasks are below this package and must start quickly.
"""
