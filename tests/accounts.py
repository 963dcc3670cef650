"""As whom tests run tasks that are nobody's in particular: where the tests are root, that has to be said."""

from __future__ import annotations

import os
import pwd

#: The account of the tests themselves.
OWN = pwd.getpwuid(os.geteuid()).pw_name
#: By which the command line is told; see `tests/__init__.py`.
VARIABLE = "CORRAL_ACCOUNT"
