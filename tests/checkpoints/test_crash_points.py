"""Whatever is interrupted or damaged: what is restored is a checkpoint that was committed, byte for byte."""

from tests.checkpoints.crash_points import play


def test_a_thousand_crash_points():
    found = play(1000)
    assert found["crashes"] >= 1000
    assert min(found["damaged"], found["fenced"], found["restored"], found["full"]) > 100
