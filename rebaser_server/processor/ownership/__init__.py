"""Who may write a change set's log: how a run gets that right, uses it, and learns of its loss.

`processor` and `graph_application` import it. Begin with `ownership.py`.
"""
