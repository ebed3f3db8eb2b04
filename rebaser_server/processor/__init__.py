"""One change set's run: its requests one after another, each committed once, until it is idle.

`cluster` starts runs; `queries` and packages above may import it. Begin with `processor.py`, the
run's loop, beside the rules of `docs/protocol.md`.
"""
