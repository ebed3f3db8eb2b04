"""Helpers for asyncio: background work, interruptible waits, periodic jobs, containment of errors; and memory.

Every package above `settings` may import it. Begin with `concurrency.py`.
"""
