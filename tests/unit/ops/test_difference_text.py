"""The difference of a branch as text, for the page and for spreadsheets."""

import csv
import io

from rebaser_client.effects import effects_csv, result_text
from rebaser_core.queries import ChangedDefinition, ComputedDifference
from rebaser_server.ops.review import MAX_TEXT, plain_difference
from rebaser_server.queries.comparisons import Diff
from rebaser_server.values.graph import Graph

ONE, TWO, THREE = (str(number).rjust(26, "0") for number in (1, 2, 3))
FOUND = Diff(
    1,
    "",
    [],
    [
        ChangedDefinition(
            id=ONE, name="net", what="value", head="x" * 300, branch=None, base=1, both=True
        )
    ],
    [
        ComputedDifference(id=TWO, name="=cmd()", head=1.5, branch="a,\nb"),
        ComputedDifference(
            id=THREE, name=None, head=-1, branch=None, head_status="ok", branch_status="failed"
        ),
    ],
    0,
    0,
    Graph(),
)


def test_a_spreadsheet_gets_whole_values_and_no_formula() -> None:
    """Values are JSON; a name that looks like a formula has an apostrophe before it."""
    rows = list(csv.reader(io.StringIO(effects_csv(FOUND.computed or ()))))

    assert rows == [
        ["value", "id", "head", "branch"],
        ["", THREE, "-1", "failed"],
        ["'=cmd()", TWO, "1.5", '"a,\\nb"'],
    ]


def test_a_result_that_is_null_is_told_from_one_that_failed_and_from_none() -> None:
    """All three have no value that could be shown."""
    sides = [(None, "ok"), (None, "failed"), (None, None), ("failed", "ok")]

    assert [result_text(*side) for side in sides] == ["null", "failed", "", '"failed"']


def test_the_page_gets_the_beginning_of_a_long_value() -> None:
    """A list of thousands of large values would be of no use, and slow."""
    [change] = plain_difference(FOUND, {ONE: "3 rows added"})["changes"]

    assert (len(change["head"]), change["head"][-1]) == (MAX_TEXT, "…")
    assert (change["branch"], change["base"], change["both"]) == ("", "1", True)
    assert change["rows"] == "3 rows added"


def test_names_are_in_the_order_of_their_numbers() -> None:
    """As people count, whatever the case of the letters."""
    names = ["b/10", "a", "B/9", "b", "9", "b/9/x"]
    differences = [ComputedDifference(id=ONE, name=each, head=1, branch=2) for each in names]
    found = Diff(1, "", [], [], differences, 0, 0, Graph())

    ordered = [row["name"] for row in plain_difference(found, {})["computed"]]

    assert ordered == ["9", "a", "b", "B/9", "b/9/x", "b/10"]
