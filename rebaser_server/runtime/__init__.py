"""Helpers: background work, interruptible waits, periodic jobs, containment of errors, memory.

Every package above `settings` may import it. Begin with `tasks.py`.
"""
