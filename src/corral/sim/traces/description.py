"""The description of a workload: what the generator draws from, and how it is written in YAML.

Knows the keys, their defaults and which exclude each other; draws nothing. docs/traces.md explains each key.
"""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from corral.sim.traces.sections import Section, read_section
from corral.sim.traces.text_rows import nearest
from corral.sim.traces.trace import TraceNodes

HOUR_MS = 3_600_000
ANY_MODEL = "any"


class Lognormal(Struct, frozen=True):
    """Durations around a median; a sigma of 1 means that two thirds lie within a factor of e of it."""

    median_ms: int
    sigma: float


class Pareto(Struct, frozen=True):
    """Durations above a minimum with a heavy tail; a smaller shape gives a heavier tail."""

    least_ms: int
    shape: float


class Fixed(Struct, frozen=True):
    """Always the same duration."""

    ms: int


class Mixture(Struct, frozen=True):
    """One of several distributions, by weight."""

    parts: tuple[tuple[Distribution, float], ...]


Distribution = Lognormal | Pareto | Fixed | Mixture


class Durations(Struct, frozen=True):
    """How long jobs of at least ``from_gpus`` GPUs run."""

    from_gpus: int
    distribution: Distribution
    least_ms: int
    most_ms: int


class Burst(Struct, frozen=True):
    """For some time jobs arrive ``times`` as often, once or repeatedly."""

    at_ms: int
    for_ms: int
    times: float
    every_ms: int | None


class Arrivals(Struct, frozen=True):
    """When jobs arrive: a Poisson process whose rate follows the hour, the day of the week and bursts."""

    per_hour: float | None
    day: tuple[float, ...] = (1.0,) * 24
    week: tuple[float, ...] = (1.0,) * 7
    bursts: tuple[Burst, ...] = ()


class Team(Struct, frozen=True):
    """A team: its share of all jobs, and its number of users, who submit unequally often."""

    name: str
    share: float
    users: int


class FailureRates(Struct, frozen=True):
    """The fraction of jobs that fail, and after which fraction of their duration."""

    part: float
    after: tuple[float, float]


class TraceLimits(Struct, frozen=True):
    """The fraction of jobs with a time limit, the limit as a multiple of the duration, and its rounding."""

    part: float
    factor: tuple[float, float]
    round_ms: int


class Description(Struct, frozen=True, kw_only=True):
    """A workload in a few numbers. Of ``jobs``, ``span_ms`` and the rate or the load exactly two are given."""

    seed: int
    jobs: int | None
    span_ms: int | None
    load: float | None
    nodes: tuple[TraceNodes, ...]
    arrivals: Arrivals
    sizes: tuple[tuple[int, float], ...]
    durations: tuple[Durations, ...]  # from_gpus rising, the first from 0
    teams: tuple[Team, ...]
    models: tuple[tuple[str, float], ...]
    fractions: tuple[tuple[int, float], ...]
    priorities: tuple[tuple[int, float], ...]
    failures: FailureRates
    limits: TraceLimits
    cpu_milli_per_gpu: int
    memory_mib_per_gpu: int


KEYS = (
    "seed", "jobs", "span", "load", "nodes", "arrivals", "sizes", "durations", "teams", "models", "fractions",
    "priorities", "failures", "limits", "cpus_per_gpu", "memory_gib_per_gpu",
)  # fmt: skip
_DISTRIBUTIONS = ("lognormal", "pareto", "fixed", "mixture")


def read_description(path: Path) -> Description:
    top = read_section(path, KEYS)
    nodes = _nodes(top)
    description = Description(
        seed=top.whole("seed"),
        jobs=top.whole("jobs", least=1) if "jobs" in top else None,
        span_ms=top.span_ms("span") if "span" in top else None,
        load=top.number("load", least=0.001) if "load" in top else None,
        nodes=nodes,
        arrivals=_arrivals(top),
        sizes=_sizes(top, nodes),
        durations=_durations(top),
        teams=_teams(top),
        models=_models(top, nodes),
        fractions=_fractions(top),
        priorities=top.counted_weights("priorities") if "priorities" in top else ((0, 1.0),),
        failures=_failures(top),
        limits=_limits(top),
        cpu_milli_per_gpu=round(top.number("cpus_per_gpu") * 1000) if "cpus_per_gpu" in top else 0,
        memory_mib_per_gpu=round(top.number("memory_gib_per_gpu") * 1024) if "memory_gib_per_gpu" in top else 0,
    )
    _check_amount(top, description)
    return description


def _nodes(top: Section) -> tuple[TraceNodes, ...]:
    if "nodes" not in top:
        return ()
    entries = top.sections("nodes", ("count", "gpus", "model", "vram_gib", "cpus", "memory_gib"))
    return tuple(
        TraceNodes(
            count=entry.whole("count", least=1),
            gpus=entry.whole("gpus"),
            model=entry.text("model") if "model" in entry else "",
            vram_mib=round(entry.number("vram_gib") * 1024) if "vram_gib" in entry else 0,
            cpu_milli=round(entry.number("cpus") * 1000) if "cpus" in entry else 0,
            memory_mib=round(entry.number("memory_gib") * 1024) if "memory_gib" in entry else 0,
        )
        for entry in entries
    )


def _arrivals(top: Section) -> Arrivals:
    if "arrivals" not in top:
        return Arrivals(None)
    section = top.section("arrivals", ("per_hour", "day", "week", "bursts"))
    day = section.numbers("day", 24) if "day" in section else (1.0,) * 24
    week = section.numbers("week", 7) if "week" in section else (1.0,) * 7
    for key, curve in (("day", day), ("week", week)):
        if not sum(curve) > 0:
            raise section.wrong(key, "must have a number above 0, or no job would arrive.")
    bursts = section.sections("bursts", ("at", "for", "times", "every")) if "bursts" in section else []
    per_hour = section.number("per_hour", least=0.001) if "per_hour" in section else None
    return Arrivals(per_hour, day, week, tuple(_burst(entry) for entry in bursts))


def _burst(entry: Section) -> Burst:
    every_ms = entry.span_ms("every") if "every" in entry else None
    burst = Burst(entry.span_ms("at"), entry.span_ms("for"), entry.number("times"), every_ms)
    if every_ms is not None and burst.for_ms >= every_ms:
        raise entry.wrong("every", "must be longer than the burst itself.")
    return burst


def _sizes(top: Section, nodes: tuple[TraceNodes, ...]) -> tuple[tuple[int, float], ...]:
    sizes = top.counted_weights("sizes")
    capacity = sum(entry.count * entry.gpus for entry in nodes)
    if nodes and (most := max(gpus for gpus, _ in sizes)) > capacity:
        raise top.wrong("sizes", f"goes up to {most} GPUs, but the nodes have {capacity} together.")
    return sizes


def _durations(top: Section) -> tuple[Durations, ...]:
    section = top.section("durations", (*_DISTRIBUTIONS, "least", "most", "by_size"))
    least_ms = section.span_ms("least") if "least" in section else 1000
    most_ms = section.span_ms("most") if "most" in section else 30 * 24 * HOUR_MS
    if least_ms > most_ms:
        raise section.wrong("least", "is longer than most.")
    found = [Durations(0, _distribution(section), least_ms, most_ms)]
    for entry in section.sections("by_size", (*_DISTRIBUTIONS, "from")) if "by_size" in section else []:
        from_gpus = entry.whole("from", least=1)
        if from_gpus <= found[-1].from_gpus:
            raise entry.wrong("from", "must be larger than in the entry before.")
        found.append(Durations(from_gpus, _distribution(entry), least_ms, most_ms))
    return tuple(found)


def _distribution(section: Section) -> Distribution:
    chosen = [kind for kind in _DISTRIBUTIONS if kind in section]
    if len(chosen) != 1:
        found = " and ".join(chosen) or "none"
        raise section.wrong(chosen[-1] if chosen else "", f"needs one of {', '.join(_DISTRIBUTIONS)}; it has {found}.")
    kind = chosen[0]
    if kind == "fixed":
        return Fixed(section.span_ms(kind))
    if kind == "lognormal":
        within = section.section(kind, ("median", "sigma"))
        return Lognormal(within.span_ms("median"), within.number("sigma", most=10.0))
    if kind == "pareto":
        within = section.section(kind, ("least", "shape"))
        return Pareto(within.span_ms("least"), within.number("shape", least=0.1))
    parts = section.sections(kind, (*_DISTRIBUTIONS, "weight"))
    mixture = Mixture(tuple((_distribution(part), part.number("weight")) for part in parts))
    if not sum(weight for _, weight in mixture.parts) > 0:
        raise section.wrong(kind, "needs at least one weight above 0.")
    return mixture


def _teams(top: Section) -> tuple[Team, ...]:
    if "teams" not in top:
        return (Team("", 1.0, 1),)
    section = top.section("teams")
    entries = {name: section.section(name, ("share", "users")) for name in section.keys}
    teams = tuple(Team(name, entry.number("share"), entry.whole("users", 1)) for name, entry in entries.items())
    if not sum(team.share for team in teams) > 0:
        raise top.wrong("teams", "needs at least one share above 0.")
    return teams


def _models(top: Section, nodes: tuple[TraceNodes, ...]) -> tuple[tuple[str, float], ...]:
    if "models" not in top:
        return ((ANY_MODEL, 1.0),)
    have = {entry.model for entry in nodes if entry.model}
    for wanted in top.section("models").keys:
        for model in wanted.split("|"):
            if model != ANY_MODEL and have and model not in have:
                raise top.section("models").wrong(wanted, f"no node has {model!r}.{nearest(model, have)}")
    return top.weights("models")


def _fractions(top: Section) -> tuple[tuple[int, float], ...]:
    if "fractions" not in top:
        return ((1000, 1.0),)
    fractions = top.counted_weights("fractions")
    for milli, _ in fractions:
        if not 1 <= milli <= 1000:
            raise top.wrong("fractions", f"has {milli}, but a part of a GPU is between 1 and 1000 thousandths.")
    return fractions


def _failures(top: Section) -> FailureRates:
    if "failures" not in top:
        return FailureRates(0.0, (1.0, 1.0))
    section = top.section("failures", ("part", "after"))
    return FailureRates(section.number("part", most=1.0), section.bounds("after", most=1.0))


def _limits(top: Section) -> TraceLimits:
    if "limits" not in top:
        return TraceLimits(0.0, (1.0, 1.0), 1000)
    section = top.section("limits", ("part", "factor", "round_to"))
    round_ms = section.span_ms("round_to") if "round_to" in section else 1000
    if round_ms < 1:
        raise section.wrong("round_to", "must be longer than 0.")
    part = section.number("part", most=1.0) if "part" in section else 1.0
    return TraceLimits(part, section.bounds("factor", least=1.0), round_ms)


def _check_amount(top: Section, description: Description) -> None:
    """Two of jobs, span and rate give the third."""
    rates = [key for key in ("load", "arrivals.per_hour") if _gives_rate(description, key)]
    if len(rates) == 2:
        raise top.wrong("load", "and arrivals.per_hour both set the rate of arrivals. Leave one of them out.")
    given = [key for key in ("jobs", "span") if key in top] + rates
    if len(given) != 2:
        found = ", ".join(given) or "none"
        why = f"give two of jobs, span and load (or arrivals.per_hour); given: {found}."
        raise top.wrong(given[-1] if given else "jobs", why)
    if description.span_ms == 0:
        raise top.wrong("span", "must be longer than 0.")
    if description.load is not None and not sum(entry.count * entry.gpus for entry in description.nodes):
        raise top.wrong("load", "is a part of the cluster's GPUs, so nodes with GPUs are needed.")
    if description.load is not None and not any(gpus and weight for gpus, weight in description.sizes):
        raise top.wrong("load", "cannot be reached, since no job requests a GPU.")


def _gives_rate(description: Description, key: str) -> bool:
    return (description.load if key == "load" else description.arrivals.per_hour) is not None
