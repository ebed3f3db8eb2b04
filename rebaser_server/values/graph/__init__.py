"""One change set's values and functions in memory, column by column: ten million fit.

A value is an *index* into the columns, which it keeps while the graph is in memory; nothing
else is kept for a value that nobody looks at. `Value` is a view of one, made when it is asked for.

    graph.values.get(id)        a `Value`, or None     graph.names, graph.roots   by name, by id
    graph.add, wire, assign, pend, root, remove, rename, compute_by, order_after   edits of one
    graph.indices_of(ids)       Arrow strings or a list → indices, -1 for what is not there
    graph.assign_many(ids, statuses, texts, covers)   a DVU's results → which were taken
    graph.pend_users(func_id, sequence)                all values that a function computes
    graph.ids_of, texts_of, input_refs, expand         columns for planner and store
    graph.tidy()                fold edits into the columns; changes nothing that can be seen

A value at rest is its canonical JSON text (`json_text`); `Value.value` parses on each access.
Only `rebase` changes a graph; `dvu` reads it, `store` saves and loads it. Not thread-safe:
the holder of the change set serialises its use. Any edit may move columns: keep indices, not
arrays.

What makes edits cheap and bulk reads fast: columns with gaps at their ends (`columns`), texts
in append-only chunks (`texts`), inputs in one pool of refs with a compressed index of dependents
over the older ones and linked lists over the younger (`wiring`), ids in a hash table of
indices (`ids`), and a topological order that is kept up to date (`order`).
"""

from rebaser_server.values.graph.columns import STATUSES
from rebaser_server.values.graph.graph import Graph
from rebaser_server.values.graph.types import Func, Inputs, Status, ids_in, without
from rebaser_server.values.graph.value import Value

__all__ = ["STATUSES", "Func", "Graph", "Inputs", "Status", "Value", "ids_in", "without"]
