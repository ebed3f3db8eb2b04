"""A process's slots: who gets one, who waits, who leaves for another.

`cluster`, `service` and `ops` import it. Begin with `slot_pool.py`.
"""
