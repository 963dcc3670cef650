"""Rows and their errors: what every reader has in common, tried on the simplest of them."""

from __future__ import annotations

import gzip
import pickle

import pytest

from corral.sim.traces.itp import read_itp
from corral.sim.traces.text_rows import TraceError, UnknownTrace, nearest
from tests.sim.traces.files import written

HEADER = "job_id,submission_time,duration,num_gpu"

WRONG = {
    "a word for a number": ("a,10,long,1", 2, "duration", "not a number"),
    "NaN": ("a,10,nan,1", 2, "duration", "not an amount"),
    "infinity": ("a,inf,5,1", 2, "submission_time", "not an amount"),
    "a negative duration": ("a,10,-5,1", 2, "duration", "negative"),
    "a number without end": (f"a,{'9' * 5000},5,1", 2, "submission_time", "not an amount"),
    "half a GPU": ("a,10,5,0.5", 2, "num_gpu", "whole number"),
    "no GPU": ("a,10,5,0", 2, "num_gpu", "at least 1"),
    "an empty field": ("a,,5,1", 2, "submission_time", "empty"),
    "an empty id": (" ,10,5,1", 2, "job_id", "empty"),
    "a row that ends early": ("a,10,5", 2, "num_gpu", "ends before"),
    "a row with a field too many": ("a,10,5,1,9", 2, "", "5 fields"),
}


@pytest.mark.parametrize(("row", "line", "field", "why"), WRONG.values(), ids=WRONG.keys())
def test_a_malformed_row_is_reported_with_file_line_and_field(tmp_path, row, line, field, why):
    path = written(tmp_path, "jobs.csv", HEADER, row)
    with pytest.raises(TraceError) as caught:
        read_itp(path)
    error = caught.value
    assert (error.file, error.line, error.field) == (str(path), line, field)
    assert why in error.why
    assert str(path) in str(error)
    assert f"line {line}" in str(error)


def test_the_line_is_that_of_the_file_even_after_blank_lines(tmp_path):
    path = written(tmp_path, "jobs.csv", HEADER, "", "a,1,1,1", "", "b,x,1,1")
    with pytest.raises(TraceError) as caught:
        read_itp(path)
    assert caught.value.line == 5


def test_two_jobs_with_one_id_are_refused(tmp_path):
    path = written(tmp_path, "jobs.csv", HEADER, "a,1,1,1", "a,2,1,1")
    with pytest.raises(TraceError, match="line 2 already") as caught:
        read_itp(path)
    assert (caught.value.line, caught.value.field) == (3, "job_id")


FILES = {
    "an empty file": (b"", "is empty"),
    "a header without rows": (b"job_id,submission_time,duration,num_gpu\n", "contains no jobs"),
    "a column that is missing": (b"job_id,submision_time,duration,num_gpu\n", "Did you mean 'submision_time'"),
    "two columns of one name": (b"job_id,submission_time,duration,num_gpu,duration\n", "two columns"),
    "a damaged gzip file": (gzip.compress(b"job_id" * 100)[:-12], "damaged gzip"),
    "bytes that are not text": (b"job_id,submission_time,duration,num_gpu\n\xff\xfe,1,1,1\n", "not UTF-8"),
}


@pytest.mark.parametrize(("content", "why"), FILES.values(), ids=FILES.keys())
def test_a_file_that_cannot_be_read_says_why(tmp_path, content, why):
    path = tmp_path / "jobs.csv"
    path.write_bytes(content)
    with pytest.raises(TraceError, match=why) as caught:
        read_itp(path)
    assert caught.value.file == str(path)


def test_a_file_that_is_not_there_names_its_neighbour(tmp_path):
    written(tmp_path, "cluster06.csv", HEADER)
    with pytest.raises(TraceError, match=r"no such file. Did you mean 'cluster06.csv'"):
        read_itp(tmp_path / "cluster6.csv")


def test_a_folder_is_not_a_file(tmp_path):
    with pytest.raises(TraceError, match="cannot be read"):
        read_itp(tmp_path)


SPELLINGS = {
    "plain": b"job_id,submission_time,duration,num_gpu\na,1,2,3\nb,1,2.5,3.0\n",
    "with the line ends of Windows": b"job_id,submission_time,duration,num_gpu\r\na,1,2,3\r\nb,1,2.5,3.0\r\n",
    "with a byte order mark": b"\xef\xbb\xbfjob_id,submission_time,duration,num_gpu\na,1,2,3\nb,1,2.5,3.0\n",
    "with more columns in another order": b"x,num_gpu,duration,job_id,submission_time\n,3,2,a,1\n7,3,2.5,b,1\n",
    "without a last line end": b"job_id,submission_time,duration,num_gpu\na,1,2,3\nb,1,2.5,3",
}


@pytest.mark.parametrize("content", SPELLINGS.values(), ids=SPELLINGS.keys())
@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
def test_every_spelling_of_a_file_gives_the_same_jobs(tmp_path, content, packed):
    path = tmp_path / "jobs.csv"
    path.write_bytes(gzip.compress(content) if packed else content)
    jobs = read_itp(path).jobs
    assert [(job.id, job.submit_ms, job.work_ms, job.gpus) for job in jobs] == [
        ("a", 1000, 2000, 3),
        ("b", 1000, 2500, 3),
    ]


def test_jobs_are_sorted_by_submission_and_then_by_place(tmp_path):
    path = written(tmp_path, "jobs.csv", HEADER, "c,5,1,1", "a,1,1,1", "b,5,1,1")
    assert [job.id for job in read_itp(path).jobs] == ["a", "c", "b"]


def test_an_id_that_looks_like_a_number_stays_as_it_is_written(tmp_path):
    path = written(tmp_path, "jobs.csv", HEADER, "6214e9,1,1,1", "007,1,1,1")
    assert [job.id for job in read_itp(path).jobs] == ["6214e9", "007"]


def test_errors_survive_a_process_border():
    for error in (TraceError("f", 3, "x", "is wrong"), UnknownTrace("muri:x", "is not there")):
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), str(again)) == (type(error), str(error))


def test_the_nearest_name_or_all_names_are_reported():
    assert nearest("trase3", ["trace1", "trace3"]) == " Did you mean 'trace3'?"
    assert nearest("xyz", ["trace1", "trace3"]) == " There are: trace1, trace3."
    assert nearest("xyz", []) == ""
