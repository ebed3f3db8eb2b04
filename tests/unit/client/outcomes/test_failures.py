"""What a batch changes, in ids, and what depends on that."""

from rebaser_client.outcomes import changed_by, dependents_of
from rebaser_client.tables import as_table
from rebaser_core.queries import ValueSnapshot
from rebaser_core.updates import PutFunc, PutValue, SetValue
from tests.helpers.batches import new_id, put

A, B, C, F = (new_id() for _ in range(4))


def value(value_id: str, *inputs: str) -> ValueSnapshot:
    func = F if inputs else None
    return ValueSnapshot(
        id=value_id, value=1, status="ok", func_id=func, inputs={"values": list(inputs)}
    )


def test_updates_name_what_they_change_in_either_form() -> None:
    """As classes, or as the wire has them; malformed ones name nothing."""
    updates = [
        put(A, 1),
        SetValue(value_id=B, value=2),
        PutFunc(func_id=F, name="f", runtime="cel"),
        {"setValue": 3},
    ]

    assert changed_by(updates) == {A, B, F}


def test_a_table_names_what_it_changes_without_objects() -> None:
    """They would take many times the memory of the table."""
    puts = [PutValue(value_id=value_id, value=1) for value_id in (A, B)]
    table = as_table([PutFunc(func_id=F, name="f", runtime="cel"), *puts])
    assert table is not None

    assert changed_by(table) == {A, B, F}
    assert "objects" not in vars(table)


def test_dependents_are_reached_through_inputs_and_functions() -> None:
    """Each with those that depend on it in turn."""
    values = {A: value(A), B: value(B, A), C: value(C, B)}

    assert dependents_of({A}, values) == {A, B, C}
    assert dependents_of({B}, values) == {B, C}
    assert dependents_of({F}, values) == {F, B, C}
