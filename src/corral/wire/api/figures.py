"""Figures over time: what the cluster, queues, nodes and jobs did.

Types and units only, not HTTP, rights, or how an answer is computed.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from corral.wire.api.answers import Answer, Body

WhenOrNone = Annotated[int, Meta(ge=0, le=1 << 53)] | None


class SeriesParameters(Body, frozen=True):
    """``names``: such as ``cluster/gpus_used`` or ``job/35/utilisation``; one that ends in ``/*`` stands for all that
    begin so and are being filled now. Without times: the last hour."""

    names: tuple[str, ...] = ()
    since_ms: WhenOrNone = None
    until_ms: WhenOrNone = None


class SeriesLine(Answer, frozen=True):
    """One series; null: unknown."""

    name: str
    values: tuple[float | None, ...]


class SeriesPeriod(Answer, frozen=True):
    """What happened in a time. ``mean_ms``: how long first starts had waited, on average; None if there were none."""

    starts: int
    succeeded: int
    failed: int
    lost_gpu_ms: int
    mean_ms: int | None = None


class SeriesSummary(Answer, frozen=True):
    """The last 24 hours, and the seven days before them."""

    day: SeriesPeriod
    week: SeriesPeriod


class SeriesView(Answer, frozen=True):
    """``points`` figures of each series, ``step_ms`` apart, the first at ``from_ms``. ``summary``: with series of the
    cluster, for users who see all queues."""

    from_ms: int
    step_ms: int
    points: int
    series: tuple[SeriesLine, ...]
    summary: SeriesSummary | None = None
