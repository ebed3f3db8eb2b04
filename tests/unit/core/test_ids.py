"""Identifiers have one text each, since subjects and message ids are compared as text."""

import pytest
from pydantic import TypeAdapter, ValidationError
from ulid import ULID

from rebaser_core.ids import ChangeSet, ChangeSetId, RequestId, UlidText, WorkspaceId

TEXT = "01JZ8M3Q7V0000000000000ABC"
KINDS = pytest.mark.parametrize("kind", [WorkspaceId, ChangeSetId, RequestId])
FORMS = [
    TEXT.lower(),
    TEXT[:-1],
    TEXT + "0",
    "8" + TEXT[1:],
    "I" * 26,
    "",
    " " + TEXT[1:],
    "٣" * 26,
]


@KINDS
def test_an_id_survives_its_text(kind):
    made = kind.from_str(TEXT)

    assert type(made) is kind
    assert str(made) == TEXT


@KINDS
@pytest.mark.parametrize("text", FORMS)
def test_any_other_text_is_refused(kind, text):
    with pytest.raises(ValueError):  # noqa: PT011 - from the library or from us
        kind.from_str(text)


@KINDS
def test_a_field_takes_the_text_and_the_class(kind):
    field = TypeAdapter(kind)

    assert type(field.validate_python(TEXT)) is kind
    assert field.validate_python(kind.from_str(TEXT)) == kind.from_str(TEXT)
    assert field.validate_python(ULID.from_str(TEXT)) == kind.from_str(TEXT)


@KINDS
@pytest.mark.parametrize(
    "value", [*FORMS, None, 5, -1, 2**200, 1.5, True, b"x" * 16, [], {}], ids=str
)
def test_a_field_says_what_it_takes(kind, value):
    with pytest.raises(ValidationError, match="a ULID in its canonical text"):
        TypeAdapter(kind).validate_python(value)


@pytest.mark.parametrize("value", [*FORMS, TEXT + "\n", None, 5, b"x" * 26], ids=repr)
def test_ids_of_values_and_functions_follow_the_same_rule(value):
    with pytest.raises(ValidationError):
        TypeAdapter(UlidText, config={"strict": True}).validate_python(value)


def test_new_ids_differ_and_are_in_order_of_time():
    made = [RequestId() for _ in range(100)]

    assert sorted(set(made)) == made


def test_a_change_set_reads_as_the_end_of_its_subjects():
    change_set = ChangeSet(WorkspaceId.from_int(1), ChangeSetId.from_int(2))

    assert str(change_set) == "00000000000000000000000001.00000000000000000000000002"
