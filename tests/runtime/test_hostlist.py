"""Lists of nodes in the notation of Slurm."""

import pytest

from corral.runtime.hostlist import BadHostlist, compress, expand

LISTS = {
    "n0": ["n0"],
    "n[0-3]": ["n0", "n1", "n2", "n3"],
    "gpu[01-03,07],login": ["gpu01", "gpu02", "gpu03", "gpu07", "login"],
    "a[1-2]-x[3-4]": ["a1-x3", "a1-x4", "a2-x3", "a2-x4"],
    "": [],
}


@pytest.mark.parametrize(("text", "names"), LISTS.items(), ids=LISTS.keys())
def test_lists_are_expanded(text: str, names: list[str]) -> None:
    assert expand(text) == names


@pytest.mark.parametrize("text", ["n[0-", "n[a]", "n[3-1]", "n[0-99999999]", "n]", "n[0-1]]", "n[]"])
def test_what_is_no_list_is_refused(text: str) -> None:
    with pytest.raises(BadHostlist):
        expand(text)


@pytest.mark.parametrize("text", ["n[0-3]", "gpu[01-03,07],login", "vm", "n0", "n[9-11]"])
def test_names_are_compressed(text: str) -> None:
    assert compress(expand(text)) == text
