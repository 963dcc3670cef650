"""The tests, and what is started like them: benchmarks, whole servers, fleets on one machine.

Where they are root, so are the servers that they start: these are given the account for jobs of users without one.
"""

import os

from tests.accounts import OWN, VARIABLE

if os.geteuid() == 0:
    os.environ.setdefault(VARIABLE, OWN)
