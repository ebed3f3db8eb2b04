"""What an update computes: the affected values, packed into units of work by cost and connection.

Pure, without I/O. `runs` and `processor` may import it. Begin with `plan.py`.
"""
