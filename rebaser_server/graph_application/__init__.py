"""The application that Rebaser's core drives: a graph of values, its branches, and its updates.

The package implements the protocols of `commit_log/state.py` and `processor/application.py` with
`values`, `compute` and `store`; `queries` and packages above may import it. Begin with
`application.py`, then `content.py`.
"""
