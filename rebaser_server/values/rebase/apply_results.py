"""Apply the results of a dependent values update (DVU) to the graph."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from rebaser_core.counts import many
from rebaser_core.messages import Correction
from rebaser_core.updates import AnyUpdate, SetComputed
from rebaser_server.values.graph import Graph, Value, ValueStatus
from rebaser_server.values.graph.columns import FAILED
from rebaser_server.values.rebase.result import RebaseResult


def apply_result_updates(graph: Graph, updates: Sequence[AnyUpdate], covers: int) -> RebaseResult:
    """Apply results one by one. A value defined anew since the claim keeps its root instead.

    A value of which only an *input* has changed since takes its result: that is right for
    the commit that it was computed from, and the input's root brings the next DVU.
    """
    performed: list[AnyUpdate] = []
    result = RebaseResult(performed)
    for index, update in enumerate(updates):
        value = graph.values.get(update.value_id) if isinstance(update, SetComputed) else None
        if not isinstance(update, SetComputed) or value is None or value.func_id is None:
            detail = "not the result of a value that is computed here"
        elif graph.roots.get(value.id, 0) > covers:
            detail = f"{value.id} was defined anew since it was computed"
        else:
            _assign_result(graph, value, update)
            performed.append(update)
            result.failed += update.failed is not None
            continue
        result.corrections.append(Correction(index=index, code="stale-result", detail=detail))
    return result


def apply_result_table(graph: Graph, results: pa.Table, covers: int) -> RebaseResult:
    """Apply many results column by column, by the rule of `apply_result_updates`.

    `results` has the columns `id`, `status` and `text` of a unit's result, no id twice. One
    correction names all dropped results. A replay drops the same ones.
    """
    statuses = results.column("status").to_numpy()
    taken = graph.assign_many(results.column("id"), statuses, results.column("text"), covers)
    result = RebaseResult(failed=int(np.count_nonzero(statuses[taken] == FAILED)))
    dropped = np.flatnonzero(~taken)
    if len(dropped):
        detail = f"{many(len(dropped), 'value')} defined anew, or removed, after being computed"
        result.corrections.append(
            Correction(index=int(dropped[0]), code="stale-result", detail=detail)
        )
    return result


def _assign_result(graph: Graph, value: Value, update: SetComputed) -> None:
    if update.failed is not None:
        graph.assign(value, None, ValueStatus.FAILED, update.failed)
    elif update.blocked_by is not None:
        graph.assign(value, None, ValueStatus.BLOCKED, update.blocked_by)
    else:
        graph.assign(value, update.value)
