"""One change set's run: its requests one after another, each committed once, until it is idle.

The package knows what a request is, and asks the application what one means: `application.py`.
`cluster` starts runs, `graph_application` implements the application. Begin with `run.py`, beside
the rules of `docs/protocol.md`.
"""
