"""Tables of keys as reference pages. Knows Markdown; the texts come from the tables."""

from __future__ import annotations

import json

from corral.wire.document.key_table import Key, KeyTable


def section(title: str, text: str, table: KeyTable) -> str:
    rows = "\n".join(_row(key) for key in table.keys)
    head = f"## {title}\n\n" + (f"{text}\n\n" if text else "")
    return f"{head}| key | what it is | default | example |\n|---|---|---|---|\n{rows}\n"


def _row(key: Key) -> str:
    example = json.dumps(key.example, ensure_ascii=False) if not isinstance(key.example, str) else key.example
    cells = (f"`{key.name}`", key.help, key.default, f"`{example}`")
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
