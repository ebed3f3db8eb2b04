"""Helpers: background work, interruptible waits, periodic jobs, progress, containment, memory.

Every package above `settings` may import it. Begin with `tasks.py`.
"""
