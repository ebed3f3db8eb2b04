"""How far the nearest exposed package is."""

import pytest

from debian_demo.functions import hops


@pytest.mark.parametrize(
    ("own", "dependencies", "distance"),
    [(True, [3], 0), (False, [], None), (False, [None], None), (False, [4, None, 2], 3)],
)
def test_the_nearest_dependency_counts(
    own: bool, dependencies: list[int | None], distance: int | None
) -> None:
    assert hops(own=own, dependencies=dependencies) == distance
