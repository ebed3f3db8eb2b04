"""One change set's values and functions in memory, column by column: ten million fit.

A value is an *index* into the columns, which it keeps while the graph is in memory; nothing
else is kept of it. `Value` is a view of one, made on access.

    graph.values.get(id)        a `Value`, or None     graph.names, graph.roots   by name, by id
    graph.add, set_inputs, set_function, assign, mark_pending, mark_root, remove, rename,
    graph.order_inputs_before   edits of one value
    graph.add_all, define_all, assign_texts            edits of many values
    graph.indices_of(ids)       Arrow strings or a list → indices, -1 for missing ids
    graph.assign_many(ids, statuses, texts, covers)   a DVU's results → which were taken
    graph.mark_users_pending(func_id, sequence)        all values that a function computes
    graph.ids_of, texts_of, input_refs, expand         columns for planner and store
    graph.compact()             free what edits left behind; changes nothing that can be seen

A value is kept as its canonical JSON text (`canonical_json`); `Value.value` parses on each access.
Only `values/rebase` changes a graph; `compute` reads it, `store` saves and loads it. Not
thread-safe: the owner of the change set serialises its use. Any edit may move columns: keep
indices, not arrays.

What makes edits cheap and bulk reads fast: columns with gaps at their ends (`columns`), texts
in append-only chunks (`text_column`), inputs in one pool of refs with a compressed index of
dependents over most of them and linked lists over the newest (`adjacency`), ids in a hash table
of indices (`ids`), and a topological order that every edit maintains (`order`).
"""

from rebaser_server.values.graph.columns import STATUSES
from rebaser_server.values.graph.graph import Graph
from rebaser_server.values.graph.types import Func, Inputs, ValueStatus, ids_in, without
from rebaser_server.values.graph.value import Value

__all__ = ["STATUSES", "Func", "Graph", "Inputs", "Value", "ValueStatus", "ids_in", "without"]
