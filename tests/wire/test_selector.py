"""Names of jobs and of parts of them: one parser for all commands."""

import pytest

from corral.wire.api.selector import BadSelector, Selector, parse

NAMES = {
    "35": Selector("35"),
    " 35 ": Selector("35"),
    "35[7]": Selector("35", ((7, 7),)),
    "35[3-9]": Selector("35", ((3, 9),)),
    "35[4-6,1]": Selector("35", ((1, 1), (4, 6))),
    "35[1-5,3-9]": Selector("35", ((1, 9),)),
    "35/trainer": Selector("35", (), "trainer"),
    "35:trainer": Selector("35", (), "trainer"),
    "35[7]/trainer": Selector("35", ((7, 7),), "trainer"),
    "35_7": Selector("35", ((7, 7),)),
    "35_[3-9]": Selector("35", ((3, 9),)),
}


@pytest.mark.parametrize(("text", "meant"), NAMES.items())
def test_a_name_is_read(text: str, meant: Selector) -> None:
    assert parse(text) == meant
    assert parse(str(meant)) == meant


@pytest.mark.parametrize(
    "text",
    [
        "",
        "train",
        "35[",
        "35[]",
        "35[a]",
        "35[9-3]",
        "35[1,,2]",
        "-3",
        "35/",
        "35//x",
        "٣",
        "1" * 19,
        "3[" + "1," * 9999,
    ],
)
def test_what_is_no_name_is_refused(text: str) -> None:
    with pytest.raises(BadSelector, match="is not a job"):
        parse(text)


def test_it_takes_exactly_the_gangs_that_it_names() -> None:
    some = parse("35[1,4-6]/trainer")
    assert [n for n in range(9) if some.takes(n, "trainer")] == [1, 4, 5, 6]
    assert not some.takes(1, "server")
    assert not some.takes(None, "trainer")
    assert parse("35").takes(None, "main")
    assert parse("35").is_whole


def test_every_part_must_name_an_element() -> None:
    assert parse("35[1,4-6]").missing((0, 1, 5)) == ""
    assert parse("35[1,4-6]").missing((0, 1, 7)) == "4-6"
    assert parse("35[1,2]").missing((1,)) == "2"
