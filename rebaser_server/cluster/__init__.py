"""Many Rebasers and many change sets: task leases, membership, takeover, reconciliation, upkeep.

`service`, `ops` and `doctor` may import it. Begin with `tasks.py`.
"""
