"""``scontrol``: names of nodes, without a request to the server."""

from __future__ import annotations

import os
import sys

from corral.cli.slurm.arguments import OptionTable, UsageError
from corral.runtime.hostlist import BadHostlist, compress, expand

TABLE = OptionTable(
    "clusters/M uid/u",
    "all/a details/d federation/F future hide help/h local oneliner/o quiet/Q sibling verbose/v version/V json yaml",
)


def main(words: list[str]) -> int:
    try:
        options, rest = TABLE.read(words, mixed=True)
    except UsageError as wrong:
        print(f'scontrol: {wrong}\nTry "scontrol --help" for more information', file=sys.stderr)
        return 1
    given = dict(options)
    if "version" in given:
        print("slurm 24.11.0 (Corral)")
        return 0
    if not rest:
        print("scontrol: error: there is no command: use show, requeue, hold, release, update", file=sys.stderr)
        return 1
    if rest[0] == "show" and len(rest) > 1 and rest[1] in ("hostnames", "hostname", "hostlist", "hostlistsorted"):
        return _names(rest[1], rest[2:])
    print(f"scontrol: error: {' '.join(rest)[:80]}: use corral show, hold, release, requeue", file=sys.stderr)
    return 1


def _names(what: str, texts: list[str]) -> int:
    text = ",".join(texts) or os.environ.get("SLURM_JOB_NODELIST", "")
    if not text:
        print("scontrol: error: there is no list of nodes, and SLURM_JOB_NODELIST is not set", file=sys.stderr)
        return 1
    try:
        names = expand(text)
    except BadHostlist as wrong:
        print(wrong, file=sys.stderr)
        return 1
    if what.startswith("hostname"):
        print("\n".join(names))
    else:
        print(compress(sorted(names) if what == "hostlistsorted" else names))
    return 0
