"""One run of a plan: which units go where, what is done, and what survives a crash.

`spark`, `processor` and packages above them may import it. Begin with `executor.py`.
"""
