"""How tasks become processes: one interface (`base`), several ways.

Nothing is imported here: the supervisors of tasks live below this package and must stay light.
"""
