"""Units of work: some values as columns with all that computing them needs, and what came of them.

Every package of `compute` may import it. Begin with `work_unit.py`.
"""
