"""Values as tables of pandas and Arrow."""

import sys

import pyarrow as pa
import pytest

from rebaser_client import MissingPackage, ValueDifferences, ValueSet
from rebaser_client.display import Rows
from rebaser_client.reader import ValueSnapshot
from tests.helpers.batches import new_id

IDS = [new_id() for _ in range(3)]


def value_set(*values: object) -> ValueSet:
    snapshots = [
        ValueSnapshot(id=IDS[n], name=f"v{n}", value=value, status="ok")
        for n, value in enumerate(values)
    ]
    return ValueSet(1, snapshots, [], may_be_stale=False)


def test_values_of_one_kind_have_a_column_of_that_kind() -> None:
    """In pandas and in Arrow, with names, states and ids beside them."""
    values = value_set(1, 2)

    frame, table = values.to_pandas(), values.to_arrow()

    assert frame["value"].sum() == 3
    assert table.schema.field("value").type == pa.int64()
    assert table.column_names == ["name", "value", "status", "message", "id"]
    assert table.column("name").to_pylist() == frame["name"].tolist() == ["v0", "v1"]


def test_values_of_several_kinds_are_json_in_arrow() -> None:
    """So that nothing is lost or guessed."""
    table = value_set(1, "text", {"a": [1.5]}).to_arrow()

    assert table.column("value").to_pylist() == ["1", '"text"', '{"a": [1.5]}']


def test_differences_are_a_table_too() -> None:
    """A side that has no such value is empty."""
    differences = ValueDifferences(value_set(1, 2, 3), value_set(1, 5))

    assert [(row.name, row.head, row.branch) for row in differences] == [
        ("v1", 2, 5),
        ("v2", 3, None),
    ]
    assert len(differences[0:1]) == 1
    assert differences.to_pandas()["head"].tolist() == [2, 3]
    assert differences.to_arrow().column("branch").to_pylist() == [5, None]


def test_a_misspelt_name_of_a_value_is_answered_with_similar_ones() -> None:
    values = value_set(1, 2)

    with pytest.raises(KeyError) as refused:
        values["vv1"]

    assert str(refused.value) == "there is no value 'vv1' among these; there is 'v1'"
    assert "vv1" not in values
    assert values.get("vv1") is None


@pytest.mark.parametrize("package", ["pandas", "pyarrow"])
def test_a_package_that_is_missing_is_named_with_its_extra(
    package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client itself needs neither."""
    monkeypatch.setitem(sys.modules, package, None)
    values, extra = value_set(1), {"pyarrow": "arrow"}.get(package, package)

    with pytest.raises(MissingPackage, match=rf"pip install 'rebaser\[{extra}\]'"):
        values.to_pandas() if package == "pandas" else values.to_arrow()


def test_the_log_and_families_are_tables_too() -> None:
    rows = Rows(["a", "b"], lambda each: {"name": each, "updates": {each: 1}})

    assert rows == ["a", "b"]
    assert rows.to_pandas()["name"].to_list() == ["a", "b"]
    assert rows.to_polars()["name"].to_list() == ["a", "b"]
    assert rows.to_arrow().column_names == ["name", "updates"]
