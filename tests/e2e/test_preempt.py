"""What `corral.training` prints is what is run: preempted on a real server it loses nothing."""

from pathlib import Path

from tests.bench.preempt import measure


def test_the_loop_of_the_docstring_loses_nothing_when_it_is_preempted(tmp_path: Path):
    """Once with one process, once with four."""
    assert measure(2, tmp_path, per_job=1) == {
        "preemptions": 2, "steps_lost": 0, "wrong_exits": 0, "requeue_exit": 85,
    }  # fmt: skip
