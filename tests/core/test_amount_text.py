"""Amounts as people read them: never thousandths, never long numbers of MiB."""

import pytest

from corral.amount_text import gpu_hours, quantity, size


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("gpu_milli", 1000, "1 GPU"),
        ("gpu_milli", 102_000, "102 GPUs"),
        ("gpu_milli:H100", 500, "0.5 GPUs of H100"),
        ("cpu_milli", 64_000, "64 CPUs"),
        ("cpu_milli", 1_000_000, "1,000 CPUs"),
        ("memory_mib", 512, "512 MiB of memory"),
        ("memory_mib", 9_536_744, "9,313.2 GiB of memory"),
        ("memory_mib", 65_535, "63.9 GiB of memory"),
        ("disk_mib", 1536, "1.5 GiB of disk"),
        ("licence", 2, "2 licence"),
    ],
)
def test_an_amount_is_told_in_the_units_of_people(name: str, value: int, text: str) -> None:
    assert quantity(name, value) == text


def test_sizes_are_rounded_down_so_that_too_little_never_looks_like_enough() -> None:
    assert size(65_536) == "64 GiB"
    assert size(65_535) == "63.9 GiB"


def test_gpu_hours() -> None:
    assert gpu_hours(45_000_000) == "12.5 GPU-hours"
