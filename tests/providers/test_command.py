"""Your own commands, several at the same time."""

from __future__ import annotations

from pathlib import Path

import pytest

from corral.providers.base import PilotOrder, ProviderRefused, ProviderUnavailable
from corral.providers.command import CommandSettings, opened

#: Ends well only if all the others are at it as well.
TOGETHER = """#!/bin/sh
: > "$1/$CORRAL_PILOT"
for _ in $(seq 200); do
    [ "$(ls "$1" | wc -l)" -ge "$2" ] && exit 0
    sleep 0.1
done
echo "$CORRAL_PILOT is alone" >&2
exit 1
"""
#: One does as its name says; all leave a trace.
VARIED = """#!/bin/sh
: > "$1/$CORRAL_PILOT"
case "$CORRAL_PILOT" in
    no-*) echo "there are none left" >&2; exit 1;;
    away-*) echo "the line is cut" >&2; exit 75;;
esac
"""


def settings(tmp_path: Path, text: str, *words: str) -> tuple[CommandSettings, Path]:
    script, traces = tmp_path / "acquire", tmp_path / "traces"
    traces.mkdir()
    script.write_text(text)
    script.chmod(0o755)
    return CommandSettings(acquire=(str(script), str(traces), *words), release=("true",), look=("true",)), traces


def orders(*names: str) -> list[PilotOrder]:
    return [PilotOrder(pilot=name, urls=(), token="x") for name in names]


def test_machines_are_asked_for_at_the_same_time(tmp_path: Path) -> None:
    said, traces = settings(tmp_path, TOGETHER, "5")
    names = [f"gpu-{number}" for number in range(5)]
    opened(said, "test").acquire(orders(*names))
    assert sorted(each.name for each in traces.iterdir()) == names


def test_what_is_wrong_with_some_keeps_no_other_from_being_asked_for(tmp_path: Path) -> None:
    said, traces = settings(tmp_path, VARIED)
    provider = opened(said, "test")
    with pytest.raises(ProviderRefused, match=r"^\S+/acquire: there are none left$"):
        provider.acquire(orders("no-1", "no-2", "gpu-1"))
    with pytest.raises(ProviderUnavailable, match=r"^\S+/acquire: the line is cut$"):
        provider.acquire(orders("no-3", "away-1", "gpu-2"))
    assert {each.name for each in traces.iterdir()} == {"no-1", "no-2", "gpu-1", "no-3", "away-1", "gpu-2"}
