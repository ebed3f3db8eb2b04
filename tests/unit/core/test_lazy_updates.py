"""Objects are made of many updates once one is asked for, and once only."""

from rebaser_core.updates import LazyUpdates, RemoveValue

ONE = RemoveValue(value_id="0" * 26)


class Removals(LazyUpdates):
    def __init__(self):
        self.made = 0

    def to_wire(self):
        self.made += 1
        return [ONE.to_wire()] * 3

    def __len__(self):
        return 3


def test_updates_are_a_sequence():
    updates = Removals()

    assert updates.made == 0
    assert updates == [ONE] * 3
    assert updates != [ONE]
    assert updates[0] == ONE
    assert updates[1:] == [ONE, ONE]
    assert list(updates) == [ONE] * 3
    assert updates.made == 1


def test_those_of_no_table_are_listed():
    updates = Removals()

    assert updates.split() == (updates, None)
    assert updates.bounds is None
    assert repr(updates) == "Removals(3)"
