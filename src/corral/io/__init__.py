"""What every part uses that reaches outside: files, HTTP, waits between attempts. Knows nothing of Corral.

Nothing is imported here: the command line and the supervisors of tasks import these modules and must start quickly.
"""
