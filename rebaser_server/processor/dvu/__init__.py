"""The dependent values update of a run: when it is due, how it is evaluated, how it is committed.

Only `processor` imports it; the evaluation itself is in `compute`. Begin with `scheduler.py`.
"""
