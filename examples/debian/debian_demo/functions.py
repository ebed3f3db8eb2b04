"""The demo's function."""

from collections.abc import Sequence


def hops(*, own: bool, dependencies: Sequence[int | None] = ()) -> int | None:
    """How far the nearest one is: 0 if it is one's own, None if there is none.

    `dependencies` are the hops of those that one depends on directly.
    """
    if own:
        return 0
    return min((1 + hop for hop in dependencies if hop is not None), default=None)
