"""What notebooks show: text of others stays text, and tables stay short."""

from rebaser_client import Draft, ValueDifferences, ValueSet
from rebaser_client.display import SHOWN, html_table
from rebaser_client.plan import build_plan
from rebaser_core.queries import ValueSnapshot
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


def test_long_tables_and_cells_are_cut() -> None:
    """And say so."""
    html = html_table(("n",), [[n] for n in range(SHOWN)] + [["x" * 1000]])
    cell = html_table(("n",), [["x" * 1000]])

    assert "and 1 more" in html
    assert "x" * 200 + "…</td>" in cell
    assert "x" * 201 not in cell
