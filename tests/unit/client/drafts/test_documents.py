"""JSON, YAML and TOML are read as what they say, or refused with the place of the fault."""

from collections.abc import Callable
from typing import Any

import pytest

from rebaser_client import InvalidDraft
from rebaser_client.documents import decode, parse_json, parse_toml, parse_yaml

LEVELS = "a: &a [lol, lol, lol, lol, lol, lol, lol, lol, lol]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
"""Nine aliases over eight levels: 43 million words."""


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("NO", "NO"),
        ("yes", "yes"),
        ("12:30:00", "12:30:00"),
        ("2026-13-45", "2026-13-45"),
        ("2026-11-25T25:00:00", "2026-11-25T25:00:00"),
        ("010", 10),
        ("0o10", 8),
        ("0x1F", 31),
        ("0b_", "0b_"),
        ("1_000", "1_000"),
        ("1e3", 1000.0),
        ("-.5", -0.5),
        ("+7", 7),
        ("-9223372036854775808", -(2**63)),
        ("~", None),
        ("", None),
        ("True", True),
        ("'12'", "12"),
        ("!!str 12", "12"),
        ("!!float 12", 12.0),
        ('"\\u2028"', "\u2028"),
    ],
)
def test_yaml_is_read_by_the_core_schema_of_1_2(text: str, value: Any) -> None:
    """With the type that the schema says, and none of YAML 1.1."""
    read = parse_yaml(f"a: {text}\n")["a"]

    assert (read, type(read)) == (value, type(value))


def test_yaml_merges_the_keys_of_others() -> None:
    """What stands there is stronger, and of several objects the first."""
    text = "a: &a {x: 1, y: 1}\nb: &b {y: 2, z: 2}\nc: {x: 3, <<: [*b, *a]}\nd: {<<: *a}\n"

    read = parse_yaml(text)

    assert read["c"] == {"x": 3, "y": 2, "z": 2}
    assert read["d"] == {"x": 1, "y": 1}


@pytest.mark.parametrize(
    ("parse", "text", "message"),
    [
        (parse_yaml, "a: 1\nb: 2\na: 3\n", "line 3, column 1: the key 'a' stands here twice, firs"),
        (parse_yaml, "a: {b: [{c: 1, 'c': 2}]}", "line 1, column 16: the key 'c' stands here twic"),
        (parse_yaml, "<<: {a: 1}\n<<: {b: 1}", "line 2, column 1: the key '<<' stands here twice"),
        (parse_yaml, "<<: 1", "line 1, column 5: << merges an object, or a list of them"),
        (parse_yaml, "1: a", "line 1, column 1: a key is text: write 1 in quotes"),
        (parse_yaml, "? [a]\n: b", "line 1, column 3: a key is text; this one is a list or an obj"),
        (parse_yaml, "a: &x [*x]", r"line 1, column 8: \*x stands for nothing that ended before"),
        (parse_yaml, "a: .inf", "line 1, column 4: .inf is no number of JSON"),
        (parse_yaml, "a: 1e999", "line 1, column 4: 1e999 is no number of JSON"),
        (parse_yaml, f"a: {'9' * 5000}", "line 1, column 4: an integer beyond 64 bits"),
        (parse_yaml, "[" * 5000, "line 1, column 81: nested deeper than 80"),
        (parse_yaml, "- " * 5000, "nested deeper than 80"),
        (parse_yaml, "a: !!timestamp 2026-01-01", "line 1, column 4: the tag .*timestamp"),
        (parse_yaml, "a: !!set {b}", "line 1, column 4: the tag"),
        (parse_yaml, "a: 1\n---\nb: 2", "line 2, column 1: a second document"),
        (parse_yaml, "%YAML 1.1\n---\na: 1", "line 2, column 1: this is said to be YAML 1.1"),
        (parse_yaml, "a: \x01", "line 1, column 4: not YAML: special characters"),
        (parse_yaml, "a: b\x85c", r"line 1, column 5: a line break of YAML 1.1; write it as \\x8"),
        (parse_yaml, 'a: "\\ud800"', "line 1, column 4: text with half of a surrogate pair"),
        (parse_yaml, "a: [", "line 1, column 5: not YAML: "),
        (parse_yaml, LEVELS, "line 8, column .* stands for more than 256 MiB"),
        (parse_json, '{"a": 1,\n "b": {"c": 1, "c": 1}}', "line 2, column 16: the key 'c' stands"),
        (parse_json, '{"a": ["a", "a"], "\\u0061": 1}', "line 1, column 19: the key 'a' stands h"),
        (parse_json, "[1,\n NaN]", "line 2, column 2: NaN is no number of JSON"),
        (parse_json, "[1e400]", "line 1, column 2: 1e400 is no number of JSON"),
        (parse_json, f"[{'9' * 5000}]", "line 1, column 2: an integer beyond 64 bits"),
        (parse_json, "[" * 5000, "line 1, column 81: nested deeper than 80"),
        (parse_json, '["\\ud800"]', "line 1, column 2: text with half of a surrogate pair"),
        (parse_json, "[1,]", "not JSON: "),
        (parse_toml, "a = 1\na = 2\n", "line 2, column 6: not TOML: Cannot overwrite a value"),
        (parse_toml, "a = 2026-11-25", "a: a date or time is no JSON; write it as text, in quotes"),
        (parse_toml, "[b]\na = [1, nan]", "b.a.1: nan is not JSON"),
        (parse_toml, "a = 2026-13-45", "line 1, column .*: not TOML"),
        (parse_toml, f"a = {'9' * 5000}", "an integer beyond 64 bits"),
        (parse_toml, f"a = {'[' * 5000}", "nested deeper than 80"),
        (parse_toml, f"{'a.' * 100}a = 1", "nested deeper than 80"),
    ],
)  # fmt: skip
def test_what_is_not_read_strictly_is_refused_with_its_place(
    parse: Callable[[str], Any], text: str, message: str
) -> None:
    """A key that stands twice, numbers that JSON has not, what is nested too deep or too large."""
    with pytest.raises(InvalidDraft, match=message):
        parse(text)


def test_a_byte_order_mark_is_no_text() -> None:
    assert decode(b"\xef\xbb\xbf{}") == "{}"
    with pytest.raises(InvalidDraft, match=r"line 2: not UTF-8 \(byte 2\)"):
        decode(b"a\n\xff")
