"""What an update computes: the affected values, packed into units of work by cost and connection.

Without I/O, but for the estimates that `update_planner` leaves in the run store. `runs` and
`processor` may import it. Begin with `plan.py`.
"""
