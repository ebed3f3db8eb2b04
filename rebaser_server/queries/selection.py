"""Which values a question means: those it names, and so many levels around them."""

from collections.abc import Callable, Collection, Iterable
from typing import Final, NamedTuple

from rebaser_core.errors import RebaserError
from rebaser_core.queries.value_query import ValuesQueryV1
from rebaser_server.values.graph import Graph

MAX_VALUES: Final = 100_000
"""Values in one answer: more than that are read from the store."""


class TooManyValues(RebaserError):
    """The question means more values than an answer takes."""


class Selection(NamedTuple):
    """Ids, first those that were named, then level by level; and names that there are not."""

    ids: list[str]
    missing: list[str]


def select(graph: Graph, query: ValuesQueryV1) -> Selection:
    """The values that `query` means.

    Raises:
        TooManyValues: more than `MAX_VALUES`.
    """
    if not query.which:
        return Selection(_require_few(list(graph.values)), [])
    named_ids: dict[str, None] = {}
    missing = []
    for name in query.which:
        value_id = name if name in graph.values else graph.names.get(name)
        if value_id is None:
            missing.append(name)
        else:
            named_ids[value_id] = None
    named = list(named_ids)
    around = _levels(named, query.inputs, lambda i: graph.values[i].input_ids())
    around += _levels(named, query.dependents, lambda i: sorted(graph.values[i].dependents))
    return Selection(_require_few(list(dict.fromkeys(named + around))), missing)


def _levels(start: list[str], levels: int, next_ids: Callable[[str], Iterable[str]]) -> list[str]:
    seen = dict.fromkeys(start)
    level: Collection[str] = start
    for _ in range(levels):
        level = {i: None for value_id in level for i in next_ids(value_id) if i not in seen}
        if not level:
            break
        seen |= dict.fromkeys(level)
        _require_few(list(seen))
    return list(seen)


def _require_few(ids: list[str]) -> list[str]:
    if len(ids) > MAX_VALUES:
        raise TooManyValues(
            f"more than {MAX_VALUES:,} values, too many for messages: read the change set's table"
        )
    return ids
