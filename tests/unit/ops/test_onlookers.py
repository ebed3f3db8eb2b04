"""Who looks at a change set is known for as long as the page asks."""

from rebaser_server.ops.status import EXPIRY, Onlookers
from tests.helpers.deployment import new_change_sets


def test_who_falls_silent_is_forgotten() -> None:
    """Each for each change set by itself."""
    now = [0.0]
    onlookers = Onlookers(lambda: now[0])
    sale, other = new_change_sets(2)
    onlookers.see(sale, "vic")
    onlookers.see(other, "eve")
    now[0] = EXPIRY
    onlookers.see(sale, "al")

    assert onlookers.of(sale) == ["al", "vic"]
    assert onlookers.of(other) == ["eve"]

    now[0] = EXPIRY + 1
    assert onlookers.of(sale) == ["al"]
    assert onlookers.of(other) == []
