"""What steps hold of the seats of a gang."""

import pytest

from corral.runtime.steps.step_ledger import CannotFit, StepLedger, StepSeat, Wanted
from corral.runtime.steps.step_ranks import SeatShare, abridged, ranks_of


def ledger(seats: int = 2, gpus: int = 4, cpus: int = 8) -> StepLedger:
    return StepLedger([StepSeat(f"n{n}", [f"G{n}{g}" for g in range(gpus)], cpus, 1000) for n in range(seats)])


def shares(found) -> list[tuple[int, int, list[str]]]:
    return [(share.seat, share.tasks, share.gpus) for share in found]


def test_every_seat_has_one_process_by_default() -> None:
    assert [each[:2] for each in shares(ledger().allocate("0", Wanted({})))] == [(0, 1), (1, 1)]


def test_processes_are_spread_evenly_over_seats() -> None:
    found = ledger(3).allocate("0", Wanted({"tasks": 5, "nodes": 2}))
    assert [each[:2] for each in shares(found)] == [(0, 3), (1, 2)]


def test_steps_with_gpus_of_their_own_get_different_ones() -> None:
    book = ledger(1)
    first = book.allocate("0", Wanted({"tasks": 1, "gpus": 1, "unit": "task"}))
    second = book.allocate("1", Wanted({"tasks": 2, "gpus": 1, "unit": "task"}))
    assert shares(first) == [(0, 1, ["G00"])]
    assert shares(second) == [(0, 2, ["G01", "G02"])]
    assert book.allocate("2", Wanted({"tasks": 2, "gpus": 1, "unit": "task"})) is None
    book.release("0")
    assert shares(book.allocate("2", Wanted({"tasks": 2, "gpus": 1, "unit": "task"}))) == [(0, 2, ["G00", "G03"])]


def test_a_step_that_overlaps_never_waits_and_holds_nothing() -> None:
    book = ledger(1)
    assert book.allocate("0", Wanted({"tasks": 8, "gpus": 4})) is not None
    assert book.allocate("1", Wanted({"tasks": 8})) is None
    assert book.allocate("1", Wanted({"tasks": 8, "overlaps": True})) is not None
    book.release("0")
    assert book.allocate("2", Wanted({"tasks": 8})) is not None


def test_a_step_that_overcommits_has_more_processes_than_cpus() -> None:
    assert ledger(1, cpus=2).allocate("0", Wanted({"tasks": 64, "overcommits": True})) is not None


def test_a_step_takes_another_seat_when_one_is_busy() -> None:
    book = ledger(2)
    book.allocate("0", Wanted({"tasks": 1, "nodes": 1, "is_whole": True}))
    assert shares(book.allocate("1", Wanted({"tasks": 1, "nodes": 1, "is_whole": True})))[0][0] == 1
    assert book.allocate("2", Wanted({"tasks": 1, "nodes": 1})) is None


@pytest.mark.parametrize(
    "wanted",
    [
        {"nodes": 3}, {"tasks": 17, "nodes": 2}, {"tasks": 1, "gpus": 5}, {"names": ["n7"]}, {"memory_mib": 2000},
        {"tasks": 4, "nodes": 1, "per_node": 2}, {"tasks": 1, "cpus": 9}, {"tasks": -1}, {"tasks": "x"}, {"names": [1]},
    ],
)  # fmt: skip
def test_what_never_fits_is_refused(wanted) -> None:
    with pytest.raises(CannotFit):
        ledger().allocate("0", Wanted(wanted))


def test_nodes_can_be_named_and_excluded() -> None:
    assert shares(ledger(3).allocate("0", Wanted({"tasks": 1, "names": ["n2"]})))[0][0] == 2
    assert shares(ledger(3).allocate("0", Wanted({"tasks": 1, "nodes": 1, "excluded": ["n0"]})))[0][0] == 1


def test_ranks_are_consecutive_or_cyclic() -> None:
    given = [SeatShare([0, "a", 2, ["A", "B"], 2, 0]), SeatShare([1, "b", 2, ["C", "D"], 2, 0])]
    assert [[each.rank for each in own] for own in ranks_of(given, 0)] == [[0, 1], [2, 3]]
    assert [[each.rank for each in own] for own in ranks_of(given, 0, is_cyclic=True)] == [[0, 2], [1, 3]]
    assert [[each.gpus for each in own] for own in ranks_of(given, 1)] == [[["A"], ["B"]], [["C"], ["D"]]]
    assert abridged([2, 2, 1]) == "2(x2),1"
