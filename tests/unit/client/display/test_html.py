"""What notebooks show: text of others stays text, and tables stay short."""

import json
from datetime import UTC, datetime

from rebaser_client import Draft, ValueDifferences, ValueSet
from rebaser_client.display import SHOWN, Rows, html_table, table_text, value_text
from rebaser_client.plan import build_plan
from rebaser_core.queries import ValueSnapshot
from rebaser_core.table_values import TableHandle, upload_value
from tests.helpers.batches import new_id

HOSTILE = "<script>alert(1)</script>\u202e\x1b"


def snapshot(name: str, value: object, status: str = "ok") -> ValueSnapshot:
    return ValueSnapshot(id=new_id(), name=name, value=value, status=status)


def test_names_and_values_are_escaped_wherever_they_are_shown() -> None:
    """Markup, and characters that are invisible or turn the text around them."""
    value = snapshot(HOSTILE, {"a": HOSTILE})
    values = ValueSet(7, [value], [], may_be_stale=True)
    draft = Draft()
    draft.source(HOSTILE, HOSTILE)
    shown = [
        values._repr_html_(),
        ValueDifferences(values, ValueSet(8, [], [], may_be_stale=False))._repr_html_(),
        build_plan(draft, {})._repr_html_(),
    ]

    for html in shown:
        assert "&lt;script&gt;" in html
        assert "<script" not in html
        assert html.isprintable()
    assert "as of commit 7, may be stale" in shown[0]
    assert "1 differ" in shown[1]
    assert "1 added" in shown[2]


def test_a_list_that_is_a_table_is_shown_with_its_times() -> None:
    rows = Rows(
        [datetime(2026, 7, 1, 8, 30, tzinfo=UTC)], lambda each: {"time": each, "who": HOSTILE}
    )

    html = rows._repr_html_()

    assert "<td>2026-07-01 08:30:00</td>" in html
    assert "<script" not in html
    assert Rows([], lambda each: {"a": each})._repr_html_().startswith("<table>")


def test_long_tables_and_cells_are_cut() -> None:
    """And say so."""
    html = html_table(("n",), [[n] for n in range(SHOWN)] + [["x" * 1000]])
    cell = html_table(("n",), [["x" * 1000]])

    assert "and 1 more" in html
    assert "x" * 200 + "…</td>" in cell
    assert "x" * 201 not in cell


def test_a_table_is_shown_in_words() -> None:
    """Anything else with that key, and any other value, is shown as the JSON that it is."""
    handle = TableHandle("0" * 64, "1" * 32, "2" * 32, 1000, 8192).to_value()
    upload, other = upload_value("ab" * 32), {"$table": 1}
    values = ValueSet(7, [snapshot("orders", handle)], [], may_be_stale=False)

    assert table_text(handle) == value_text(json.dumps(handle)) == "table: 1,000 rows"
    assert table_text(upload) == value_text(json.dumps(upload)) == "table: upload abababababab"
    assert [table_text(each) for each in (other, 5, None, "table")] == [None] * 4
    assert value_text(json.dumps(other)) == json.dumps(other)
    assert "<td>table: 1,000 rows</td>" in values._repr_html_()
    assert "orders=table: 1,000 rows" in repr(values)
