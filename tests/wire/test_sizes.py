"""Sizes and ranges: what is read, what is refused, what is read back, and what cards really report."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.core.intake.refusal import Refusal
from corral.wire.sizes import (
    MIB,
    MOST_MIB,
    UNITS,
    Range,
    parse_bytes,
    parse_counts,
    parse_size,
    parse_vram,
    write_size,
    write_vram,
)

READ = {
    "64Gi": 65_536, "64GiB": 65_536, "64 gib": 65_536, "512MiB": 512, "1TiB": 1 << 20, "1.5GiB": 1536, "0": 0,
    "0MiB": 0,     "40GB": 38_147, "1MB": 1, "1B": 1, "1KiB": 1, "1048577B": 2, " 2GiB ": 2048, "0.5MiB": 1,
}  # fmt: skip
REFUSED = {
    "": "is not a size", "64": "has no unit", "64G": "is ambiguous", "1.5g": "is ambiguous",
    "-1GB": "is not a size", "GB": "is not a size", "1GBB": "has the unknown unit", "1 PB": "has the unknown unit",
    "99999999999TiB": "more than a million TiB", "٣GB": "is not a size", "1,5GB": "is not a size",
}  # fmt: skip


@pytest.mark.parametrize(("text", "mib"), READ.items(), ids=[repr(text) for text in READ])
def test_reads_and_rounds_up(text: str, mib: int) -> None:
    assert parse_size(text) == mib


@pytest.mark.parametrize(("text", "why"), REFUSED.items(), ids=[ascii(text) for text in REFUSED])
def test_refuses_and_says_what_to_write(text: str, why: str) -> None:
    found = parse_size(text)
    assert isinstance(found, Refusal)
    assert why in found.why
    assert found.hint


@given(st.integers(0, MOST_MIB))
def test_what_is_written_is_read_back(mib: int) -> None:
    assert parse_size(write_size(mib)) == mib


@given(st.integers(0, 10**6), st.sampled_from(list(UNITS)))
def test_a_number_and_a_unit_are_their_product(number: int, unit: str) -> None:
    found = parse_bytes(f"{number}{unit}")
    assert found == number * UNITS[unit] if number * UNITS[unit] <= MOST_MIB * MIB else isinstance(found, Refusal)


@given(st.text(max_size=12) | st.text("0123456789.GBi<>= ", max_size=10))
def test_any_text_is_read_or_refused(text: str) -> None:
    for parse in (parse_size, parse_vram, parse_counts):
        found = parse(text)
        assert isinstance(found, Refusal | Range) or 0 <= found <= MOST_MIB


# What the cards report (nvidia-smi, amd-smi), by the size they are sold as.
CARDS = {
    "T4": ("16GB", 15_360), "A10": ("24GB", 23_028), "L4": ("24GB", 23_034), "RTX 4090": ("24GB", 24_564),
    "V100": ("32GB", 32_510), "A100-40": ("40GB", 40_536), "L40S": ("48GB", 46_068), "A100-80": ("80GB", 81_920),
    "H100": ("80GB", 81_559), "GH200": ("96GB", 97_871), "H200": ("141GB", 143_771), "B200": ("180GB", 183_359),
    "MI300X": ("192GB", 196_592),
}  # fmt: skip


@pytest.mark.parametrize(("sold_as", "mib"), CARDS.values(), ids=CARDS.keys())
def test_a_card_is_within_the_size_it_is_sold_as(sold_as: str, mib: int) -> None:
    for text in (sold_as, f"{sold_as}..", f"..{sold_as}", f">={sold_as}", f"<={sold_as}", f"10GB..{sold_as}"):
        found = parse_vram(text)
        assert isinstance(found, Range)
        assert (found.low or 0) <= mib <= (found.high or MOST_MIB), text


def test_no_card_is_within_the_size_of_another() -> None:
    ranges = {sold_as: parse_vram(sold_as) for sold_as, _ in CARDS.values() if sold_as != "180GB"}  # also sold as 192
    for sold_as, mib in CARDS.values():
        found = {text for text, r in ranges.items() if isinstance(r, Range) and (r.low or 0) <= mib <= (r.high or 0)}
        assert found == {sold_as.replace("180", "192")}


@given(st.integers(0, MOST_MIB), st.none() | st.integers(0, MOST_MIB))
def test_a_range_of_vram_is_read_back(low: int, high: int | None) -> None:
    if high is not None and low > high:
        low, high = high, low
    found = parse_vram(write_vram(low, high))
    assert found == Range(low if low or high is None else None, high)


COUNTS = {"4": Range(4, 4), "2..8": Range(2, 8), "2..": Range(2, None), "..8": Range(None, 8), " 2 .. 8 ": Range(2, 8)}


@pytest.mark.parametrize(("text", "range_"), COUNTS.items(), ids=COUNTS.keys())
def test_counts(text: str, range_: Range) -> None:
    assert parse_counts(text) == range_


@pytest.mark.parametrize("text", ["", "..", "8..2", "a..b", "2...8", "-1..2", "1.5"])
def test_what_is_no_range_of_counts_is_refused(text: str) -> None:
    assert isinstance(parse_counts(text), Refusal)
