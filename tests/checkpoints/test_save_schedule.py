"""All ranks save at the same steps, whatever their clocks say."""

from itertools import pairwise

import pytest

from corral.checkpoints.save_schedule import SaveSchedule


class Ranks:
    """Two ranks with different clocks; what rank 0 says is what both get."""

    def __init__(self, interval: float | str) -> None:
        self.now = [0.0, 1000.0]
        self.said: list[int] = []
        self.schedules = [
            SaveSchedule(interval, self._tell, lambda: self.now[0]),
            SaveSchedule(interval, lambda _: self.said[-1], lambda: self.now[1]),
        ]

    def _tell(self, value: int) -> int:
        self.said.append(value)
        return value

    def steps_saved(self, steps: int) -> list[int]:
        saved = []
        for step in range(1, steps + 1):
            self.now[0] += 1.0
            self.now[1] += 1.7  # slow to be asked
            due = [schedule.is_due(step) for schedule in self.schedules]
            assert due[0] == due[1]
            if due[0]:
                saved.append(step)
                for schedule in self.schedules:
                    schedule.saved(step, 0.1, 0.5)
        return saved


def test_ranks_agree_on_the_steps():
    saved = Ranks(30.0).steps_saved(200)
    assert len(saved) in (6, 7)
    assert all(28 <= later - earlier <= 33 for earlier, later in pairwise(saved))


def test_auto_follows_the_advice(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CORRAL_MTBF_S", "2000")  # the best interval is about sqrt(2 * 0.1 * 2000)
    assert all(18 <= later - earlier <= 22 for earlier, later in pairwise(Ranks("auto").steps_saved(200)[1:]))


def test_an_interval_that_means_nothing_is_refused():
    with pytest.raises(ValueError, match="number of seconds or 'auto'"):
        SaveSchedule("often", lambda value: value)
