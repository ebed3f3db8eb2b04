"""The server: a daemon that applies each change set's requests in order and recomputes dependents.

From the outside in: `commands` (the command line), `service` (the parts of a daemon), `ops` (status
page and metrics), `doctor`, `queries` (reads), `graph_application` (the meaning of batches),
`cluster` (which Rebaser holds what), `processor` (one change set's run), `commit_log`, `store` and
`compute`, `values` (graph and rebase), `runtime`, `settings`, `telemetry`, `terminal`. Each imports
only what is below it; `.importlinter` enforces that. Begin with `processor/run.py`.
"""
