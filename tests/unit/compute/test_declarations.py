"""Comments before a query that declare what it is."""

import pytest

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
