"""Comments before a query that declare what it is."""

import pytest

from rebaser_core.table_schemas import NotATable
from rebaser_server.compute.functions.sql import SqlRefused
from rebaser_server.compute.tables import Definition, read_definition, require_sound


@pytest.mark.parametrize(
    ("comment", "word"),
    [
        ("keys: id", "key"),
        ("KEY S: id", "key"),
        ("partitioned by: day", "partition by"),
        ("partition_by: day", "partition by"),
        ("partition: day", "partition by"),
        ("return: value", "returns"),
        ("retruns : value", "returns"),
        ("column: id bigint not null", "columns"),
        ("colums: id bigint", "columns"),
        ("smal: nation", "small"),
    ],
)
def test_a_declaration_with_a_typing_mistake_is_refused(comment: str, word: str) -> None:
    """With the word that it is near to: else a contract would never be looked at."""
    with pytest.raises(SqlRefused, match=f"write `-- {word}: …`"):
        require_sound(f"-- first line\n\n-- {comment}\nSELECT 1 AS id")


@pytest.mark.parametrize(
    "comment",
    [
        "note: by day",
        "orders of a day",
        "see https://example.org",
        "todo: key",
        "by Ann: 2026",
        ":",
    ],
)
def test_other_comments_stay_comments(comment: str) -> None:
    assert read_definition(f"-- {comment}\n-- Key : day\nSELECT 1") == Definition(key=("day",))


@pytest.mark.parametrize("kind", ["varchar(20)", "char(3)", "VARCHAR(20) not null"])
def test_text_of_a_length_is_refused(kind: str) -> None:
    """Spark's results have none, so such a column would never be met."""
    with pytest.raises(SqlRefused, match="write `string`"):
        read_definition(f"-- columns: name {kind}\nSELECT 'a' AS name")


@pytest.mark.parametrize(
    ("declared", "says"),
    [
        ("returns: rows", "neither `table` nor `value`"),
        ("returns: value\n-- key: id", "is no table"),
        ("partition by: day, id", "partitioned by one column"),
        ("columns: id", "is no column"),
    ],
)
def test_declarations_that_make_no_sense_are_refused(declared: str, says: str) -> None:
    with pytest.raises(SqlRefused, match=says):
        read_definition(f"-- {declared}\nSELECT 1 AS id")


@pytest.mark.parametrize(
    ("declared", "says"),
    [
        ("columns: id bigint", None),
        ("columns: `id` LONG not null", None),
        ("columns: id bigint, day date", "no column 'day', which is declared"),
        ("columns: id string", "declared as string, and the query returns bigint"),
        ("columns: day date", "no column 'day'"),
        ("key: id", None),
        ("key: id, day", "no column 'day', which the key has"),
        ("partition by: day", "'day'"),
    ],
)
def test_a_result_is_held_to_its_declarations(declared: str, says: str | None) -> None:
    definition = read_definition(f"-- {declared}\nSELECT 1 AS id")
    fields = [{"name": "id", "type": "long", "nullable": True, "metadata": {}}]

    if says is None:
        definition.require_columns(fields)
    else:
        with pytest.raises(NotATable, match=says):
            definition.require_columns(fields)


def test_a_column_that_is_not_declared_is_refused() -> None:
    fields = [
        {"name": name, "type": "long", "nullable": True, "metadata": {}} for name in ("id", "more")
    ]
    with pytest.raises(NotATable, match="a column 'more', which is not declared"):
        read_definition("-- columns: id bigint\nSELECT 1 AS id").require_columns(fields)
