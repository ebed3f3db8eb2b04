"""`rebaser plan` and `load` before anything is sent: the SQL of a file is judged, all of it."""

import pytest

from rebaser_client.draft import Draft, sql
from rebaser_client.errors import InvalidDraft
from rebaser_server.commands.load import _require_sound_queries


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
