"""What every part uses that reaches outside: files, HTTP, waits between attempts. Does not know Corral.

Nothing is imported here: the command line and the supervisors of tasks import these modules and must start quickly.
"""
