"""docs/environment.md, made from the table of variables."""

from __future__ import annotations

from corral.wire.environment.export import USUAL
from corral.wire.environment.variables import GROUPS, Variable, VariableGroup


def environment_page() -> str:
    return "\n".join([_HEAD, *map(_section, GROUPS), _EXPORTED.format(usual=", ".join(f"`{name}`" for name in USUAL))])


def _section(group: VariableGroup) -> str:
    about = f"{group.about}\n\n" if group.about else ""
    rows = "\n".join(map(_row, group.variables))
    return f"## {group.title}\n\n{about}| variable | what it is | may be set by the job |\n|---|---|---|\n{rows}\n"


def _row(variable: Variable) -> str:
    return f"| `{variable.name}` | {variable.meaning} | {'yes' if variable.mine else ''} |"


_HEAD = """# The environment of a job

Made from the table in `corral.wire.environment.variables`; `make accept` writes it again. A test compares the table
with the code that sets the variables.

A job has the variables below, those of its `env` and `secrets` ([the job file](job-file.md)), and what it takes along
from where it is submitted ([below](#what-is-taken-along-from-your-shell)). **Nothing comes from the environment of
the server or of the agent**, not even `PATH`. Standard input is `/dev/null`. A command line runs with `bash`, without
reading profile files; with `sh` on nodes and in images without bash.

Where "may be set by the job" says yes, a value in `env`, or one that is taken along, takes precedence. The others are
always those of Corral.
"""

_EXPORTED = """## What is taken along from your shell

`corral submit`, `corral run` and the Python client run a job in the current directory. Of the environment they take
along what `--export` says (also the key `export` of a job file, and `#SBATCH --export`):

| `--export` | the job gets |
|---|---|
| not given | {usual}: it finds the programs that you find |
| `NONE` | nothing |
| `HF_HOME,MODE=fast` | the named variables only, and the values given here |
| `ALL` | all, except those of a terminal or session, those that Corral sets, and names that look like secrets |
| `ALL,HF_TOKEN` | the same, and this variable although it looks like a secret |

`-e NAME` and `-e NAME=value` add single variables. `env` of the job file takes precedence over all of these.

sbatch takes everything along by default. Corral does not: **a job is stored in the journal with its variables**, and
operators and everyone who may change the job can read them, so a token in your shell would be stored for years. For
tokens and passwords use secrets: `corral secret set` stores the value encrypted, and `--secret HF_TOKEN=hf` gives it
to the task only. A variable counts as a secret if its name contains `TOKEN`, `SECRET`, `PASSW`, `CREDENTIAL`,
`API_KEY` or similar; names that `ALL` leaves out are listed when you submit.

Of `PATH` only absolute directories are taken along, and the directories of the system are added at its end: nodes may
differ from your machine. A job with an `image` takes nothing along by default, because the image has its own paths.

## Which Python a job has

If a virtual environment or a conda environment is active, `corral submit` says which `python` the job will find:

```
python is /home/ada/venv/bin/python, as here (--export NONE: that of the node)
```

`--venv` uses the active environment, also with `--export NONE`; `--venv DIR` uses another one. It sets `VIRTUAL_ENV`
(for conda: `CONDA_PREFIX`) and puts its `bin` first in `PATH`. The nodes must have the environment under the same
path, as on a shared file system. In Python: `client.submit(..., venv="active")`.
"""
