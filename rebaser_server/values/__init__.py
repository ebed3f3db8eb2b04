"""The value graph of a change set: values with inputs and functions, kept in columns, without I/O.

`store`, `compute`, `graph_application` and packages above them may import it. Begin with
`graph.py` for what a graph is, and with `rebase.py` for how a batch changes it.
"""
