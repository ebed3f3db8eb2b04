"""Fold what an update of dependent values found into the graph that it is for."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from rebaser_core.messages import Correction
from rebaser_core.updates import AnyUpdate, SetComputed
from rebaser_server.values.graph import Graph, Status, Value
from rebaser_server.values.graph.columns import FAILED
from rebaser_server.values.rebase.result import Rebased


def folded(graph: Graph, updates: Sequence[AnyUpdate], covers: int) -> Rebased:
    """Merge the results; a value defined anew since the claim keeps its root and drops its result.

    A value of which only an *input* changed since takes its result: it is right for
    the commit that it was computed from, and the input's root brings the next run.
    """
    done = Rebased()
    for index, update in enumerate(updates):
        value = graph.values.get(update.value_id) if isinstance(update, SetComputed) else None
        if not isinstance(update, SetComputed) or value is None or value.func_id is None:
            detail = "not the result of a value that is computed here"
        elif graph.roots.get(value.id, 0) > covers:
            detail = f"{value.id} was defined anew since it was computed"
        else:
            _take(graph, value, update)
            done.updates.append(update)
            done.failed += update.failed is not None
            continue
        done.corrections.append(Correction(index=index, code="stale-result", detail=detail))
    return done


def fold(graph: Graph, results: pa.Table, covers: int) -> Rebased:
    """Merge many results, by the rule of `folded` but column by column.

    `results` has the columns `id`, `status` and `text` of `dvu.outcome`, no id twice. Those
    that are dropped are told of together: replayed, the same ones are dropped.
    """
    statuses = results.column("status").to_numpy()
    taken = graph.assign_many(results.column("id"), statuses, results.column("text"), covers)
    done = Rebased(failed=int(np.count_nonzero(statuses[taken] == FAILED)))
    dropped = np.flatnonzero(~taken)
    if len(dropped):
        detail = f"{len(dropped)} values were defined anew, or removed, since they were computed"
        done.corrections.append(
            Correction(index=int(dropped[0]), code="stale-result", detail=detail)
        )
    return done


def _take(graph: Graph, value: Value, update: SetComputed) -> None:
    if update.failed is not None:
        graph.assign(value, None, Status.FAILED, update.failed)
    elif update.blocked_by is not None:
        graph.assign(value, None, Status.BLOCKED, update.blocked_by)
    else:
        graph.assign(value, update.value)
