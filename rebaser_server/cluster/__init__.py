"""Many Rebasers and many change sets: task leases, membership, takeover, reconciliation, upkeep.

It hides how Rebasers agree on who works on what. `service`, `ops`, `doctor` and `commands` may
import it. Begin with `tasks.py`.
"""
