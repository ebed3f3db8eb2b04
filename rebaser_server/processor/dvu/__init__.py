"""The dependent values update of a run: when it is due, how it is evaluated, how it is committed.

Only `processor` imports it; what an update computes is the application's. Begin with
`scheduler.py`.
"""
