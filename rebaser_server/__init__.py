"""The server: a daemon that applies each change set's requests in order and recomputes dependents.

From the outside in: `commands` (the command line), `service` (what a daemon is made of), `ops`
(status page and metrics), `doctor`, `queries` (reads), `graph_application` (what batches mean),
`cluster` (which Rebaser holds what), `processor` (one change set's run), `commit_log`, `store` and
`compute`, `values` (graph and rebase), `runtime`, `settings`, `telemetry`, `terminal`. Each imports
only what is below it; `.importlinter` enforces that. Begin with `processor/run.py`.
"""
