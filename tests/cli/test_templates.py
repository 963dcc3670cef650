"""`corral template`: stored, listed, printed so that it can be submitted, and removed."""

from __future__ import annotations

TEXT = "name: from-template\ngpus: 1\ntime_limit: 1m\ncommand: 'true'\n"


def test_a_template_is_stored_printed_and_removed(corral, at_home):
    file = at_home / "job.yaml"
    file.write_text(TEXT)
    assert "stored for you" in corral("template", "set", "small", str(file)).out
    assert "stored for all users" in corral("template", "set", "common", str(file), "--site").out
    listed = corral("template", "list").out
    assert "small" in listed
    assert "all users" in listed
    assert corral("template", "show", "small").out == TEXT
    assert "removed" in corral("template", "remove", "small").out
    assert "removed" in corral("template", "remove", "common", "--site").out
    gone = corral("template", "show", "small")
    assert gone.code == 5
    assert "corral template list" in gone.err


def test_mistakes_say_what_to_do(corral, at_home):
    missing = corral("template", "set", "small", "no-such-file.yaml")
    assert "cannot read no-such-file.yaml" in missing.err
    assert missing.code != 0
    (at_home / "empty.yaml").write_text("\n")
    assert "template is empty" in corral("template", "set", "small", "empty.yaml").err
