"""The account that runs tasks of no particular user: needed where the tests run as root."""

from __future__ import annotations

import os
import pwd

#: The account of the tests themselves.
OWN = pwd.getpwuid(os.geteuid()).pw_name
#: The variable of the command line; see `tests/__init__.py`.
VARIABLE = "CORRAL_ACCOUNT"
