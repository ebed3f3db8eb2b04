"""Work of many Rebasers on many change sets: leases, membership, takeover, reconciliation, upkeep.

The package hides how Rebasers agree on who works on what. `service`, `ops`, `doctor` and `commands`
may import it. Begin with `tasks.py`.
"""
