"""`rebaser load` before anything is sent: the SQL of a file is judged, all of it."""

from pathlib import Path

import pytest

from rebaser_client.draft import Draft, sql
from rebaser_client.errors import InvalidDraft
from rebaser_server.commands.load import _require_sound_queries
from tests.helpers.command_line import run_command


def test_all_queries_that_a_rebaser_refuses_are_named_at_once() -> None:
    draft = Draft()
    draft.value("one", sql("SELECT uuid() AS x"))
    draft.value("good", sql("SELECT 1 AS x"))
    draft.value("two", sql("SELECT * FROM t"))

    with pytest.raises(InvalidDraft) as refused:
        _require_sound_queries(draft)

    first, second = str(refused.value).split("\n")
    assert first.startswith("'one': line 1, column 8: the function uuid()")
    assert second.startswith("'two': line 1, column 15: 't' is neither an argument")


def test_a_file_that_does_not_describe_values_is_refused_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`rebaser init` is named only where there is no file, or nothing in it."""
    monkeypatch.chdir(tmp_path)
    Path("adir").mkdir()
    Path("shop.yaml").write_text("sources: {net: 1}\n")
    Path("wrong.yaml").write_text("source: {net: 1}\n")
    Path("empty.yaml").touch()

    def told(*words: str) -> str:
        done = run_command(["load", "--dry-run", *words], {})
        assert done.code == 1
        return done.err

    writes, unsent = "`rebaser init` writes a file to begin with", "  Nothing was sent.\n"
    assert "adir: it is a folder; name a file in it\n" + unsent in told("shop", "adir")
    order = "the file stands last: `rebaser load shop shop.yaml`"
    assert order in told("shop.yaml", "shop")
    assert order.replace(" shop ", " adir ") in told("shop.yaml", "adir")
    assert told("shop", "wrong.yaml").endswith(unsent)
    assert writes not in told("shop", "wrong.yaml")
    assert writes in told("shop", "none.yaml")
    assert "name a file, too: `rebaser load shop FILE`" in told("shop")
    assert writes in told("shop", "empty.yaml")
