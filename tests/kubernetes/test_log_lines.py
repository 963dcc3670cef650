"""What a task writes to both streams comes out of the one log again, byte for byte."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from corral.kubernetes.pod.log_lines import LineDecoder, LineEncoder, record_line

#: Text with many newlines and control characters of the format itself.
_BYTES = st.binary(max_size=40) | st.lists(
    st.sampled_from([b"\n", b"\x1c", b"\x1d", b"\x1e", b"\x1f", b"a", b"\x1dx\n", b"\x1f\n"]), max_size=12
).map(b"".join)
_WRITES = st.lists(st.tuples(st.booleans(), _BYTES, st.booleans()), max_size=20)


@given(_WRITES, st.integers(1, 7), st.booleans())
def test_streams_are_taken_apart_again(writes: list[tuple[bool, bytes, bool]], chunk: int, has_record: bool):
    encoders = (LineEncoder(False), LineEncoder(True))
    expected, log = [b"", b""], b""
    for is_stderr, data, is_flushed in writes:
        expected[is_stderr] += data
        log += encoders[is_stderr].feed(data)
        if is_flushed:
            log += encoders[is_stderr].flush()
    log += b"".join(encoder.flush() for encoder in encoders)
    if has_record:
        log += record_line(b'{"exit": 1}')
    decoder, found = LineDecoder(), [b"", b""]
    for start in range(0, len(log), chunk):
        for number, part in enumerate(decoder.feed(log[start : start + chunk])):
            found[number] += part
    assert found == expected
    assert decoder.record == (b'{"exit": 1}' if has_record else b"")


def test_plain_lines_of_stdout_are_unchanged_in_the_log():
    assert LineEncoder(False).feed(b"loss 0.5\nloss 0.4\n") == b"loss 0.5\nloss 0.4\n"


def test_a_line_that_was_cut_off_is_kept():
    decoder = LineDecoder()
    assert decoder.feed(b"whole\npar") == (b"whole\n", b"")
    assert decoder.end() == (b"par", b"")


def test_a_very_long_line_is_passed_on_in_parts():
    encoder = LineEncoder(False)
    log = encoder.feed(b"x" * 100_000)
    assert len(log) > 80_000
    assert LineDecoder().feed(log + encoder.flush())[0] == b"x" * 100_000
