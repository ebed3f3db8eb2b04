"""Which values a question means: those it names, and so many levels around them."""

from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import islice
from typing import Final, NamedTuple

from rebaser_core.errors import RebaserError
from rebaser_core.queries import ValuesQueryV2
from rebaser_server.values.graph import Graph, ReadableGraph, ValuesById

MAX_VALUES: Final = 100_000
"""Values in one answer: more than that are read from the store."""


class TooManyValues(RebaserError):
    """The question means more values than an answer takes."""


class NamedValues(NamedTuple):
    """Ids of values that a question names, and names that there are not."""

    ids: list[str]
    missing: list[str]


def named_values(graph: Graph, which: Sequence[str]) -> NamedValues:
    """The values of these names or ids, each once."""
    ids: dict[str, None] = {}
    missing = []
    for name in which:
        value_id = name if name in graph.values else graph.names.get(name)
        if value_id is None:
            missing.append(name)
        else:
            ids[value_id] = None
    return NamedValues(list(ids), missing)


def select(graph: ReadableGraph, query: ValuesQueryV2, named: Sequence[str]) -> list[str]:
    """Ids of the values that `query`, which names some, means: these first, then by levels.

    Raises:
        TooManyValues: more than `MAX_VALUES`.
    """
    values = ValuesById(graph)
    if not query.which:
        return _require_few(list(islice(values, MAX_VALUES + 1)))
    around = _levels(named, query.inputs, lambda i: values[i].input_ids())
    around += _levels(named, query.dependents, lambda i: sorted(values[i].dependents))
    return _require_few(list(dict.fromkeys([*named, *around])))


def _levels(
    start: Sequence[str], levels: int, next_ids: Callable[[str], Iterable[str]]
) -> list[str]:
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
