"""Durations: what is read, what is refused, and that writing and reading are inverse."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.core.intake.refusal import Refusal
from corral.duration_text import UNITS_MS, span, write_span
from corral.wire.durations import MOST_MS, parse_span

READ = {
    "30s": 30_000,
    "10m": 600_000,
    "2h": 7_200_000,
    "7d": 604_800_000,
    "1w": 604_800_000,
    "250ms": 250,
    "1d12h": 129_600_000,
    "1.5h": 5_400_000,
    "0.0005s": 1,
    "0.0004s": 0,
    " 1 h 30 m ": 5_400_000,
    "2H": 7_200_000,
    "0": 0,
    "0.0": 0,
    "0s": 0,
}

REFUSED = {
    "": "is not a duration",
    "30": "has no unit",
    "1.5": "has no unit",
    "-1h": "is not a duration",
    "h": "is not a duration",
    "1 hour": "is not a duration",
    "1h30": "is not a duration",
    "1h1h": "has a unit twice",
    "30s1h": "has a unit twice, or a larger one",
    "1e3s": "is not a duration",
    "٣s": "is not a duration",
    "9999999d": "is more than a thousand years",
}


@pytest.mark.parametrize(("text", "ms"), READ.items(), ids=[repr(text) for text in READ])
def test_reads(text: str, ms: int) -> None:
    assert parse_span(text) == ms


@pytest.mark.parametrize(("text", "why"), REFUSED.items(), ids=[ascii(text) for text in REFUSED])
def test_refuses_and_says_what_to_write(text: str, why: str) -> None:
    found = parse_span(text)
    assert isinstance(found, Refusal)
    assert why in found.why
    assert found.hint


@given(st.integers(min_value=0, max_value=MOST_MS))
def test_what_is_written_is_read_back(ms: int) -> None:
    assert parse_span(write_span(ms)) == ms


@given(st.integers(min_value=0, max_value=10**6), st.sampled_from(list(UNITS_MS)))
def test_a_number_and_a_unit_are_their_product(number: int, unit: str) -> None:
    wanted = number * UNITS_MS[unit]
    found = parse_span(f"{number}{unit}")
    assert found == wanted if wanted <= MOST_MS else isinstance(found, Refusal)


@given(st.text(max_size=12))
def test_any_text_is_read_or_refused(text: str) -> None:
    found = parse_span(text)
    assert isinstance(found, Refusal) or 0 <= found <= MOST_MS


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0s"),
        (-5, "0s"),
        (850, "850ms"),
        (1_500, "1s"),
        (45_000, "45s"),
        (90_999, "1m30s"),
        (3_900_000, "1h5m"),
        (7_230_000, "2h30s"),
        (9 * 86_400_000 + 3_600_000 + 60_000, "9d1h"),
    ],
)
def test_people_read_the_two_largest_parts(ms: int, text: str) -> None:
    assert span(ms) == text


def test_weeks_are_read_and_written_as_days() -> None:
    assert write_span(parse_span("2w") or 0) == "14d"  # type: ignore[arg-type]
