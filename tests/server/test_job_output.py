"""The last lines of one stream, where several processes write to it."""

from __future__ import annotations

import pytest

from corral.runtime.base import LogPart, TaskKey
from corral.server.api.handlers.job_output import Source

OF_RANK_3 = b"rank 3: saved\n"
OF_RANK_2 = b"rank 2: still working\n" * 20_000  # more than one look at the end of a log reads
LOG = OF_RANK_3 + OF_RANK_2
MARKS = ((0, 1_000, 3), (len(OF_RANK_3), 2_000, 2))


async def read(_key: TaskKey, _stream: str, offset: int, limit: int) -> LogPart:
    begin = max(len(LOG) + offset, 0) if offset < 0 else offset
    end = min(begin + limit, len(LOG))
    before = [mark for mark in MARKS if mark[0] <= begin]
    marks = (*before[-1:], *(mark for mark in MARKS if begin < mark[0] < end))
    return LogPart(begin, LOG[begin:end], end, is_over=end == len(LOG), marks=marks)


@pytest.mark.parametrize(("rank", "expected"), [(3, OF_RANK_3), (2, b"rank 2: still working\n")])
async def test_the_last_line_of_a_rank_is_found_behind_many_lines_of_another(rank, expected):
    source = Source(read, TaskKey("1", 1, 0), "stdout", 0, None, is_followed=False)
    assert (await source.last_lines(1, rank))[-1][3] == expected


async def test_the_last_lines_of_a_stream_are_those_of_any_rank():
    source = Source(read, TaskKey("1", 1, 0), "stdout", 0, None, is_followed=False)
    assert {line[1] for line in await source.last_lines(1, None)} == {2}
    assert source.offset == len(LOG)
