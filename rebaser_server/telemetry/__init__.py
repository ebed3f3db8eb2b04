"""Observation of a process's work: logs, metrics, traces, and statistics for the status page.

Every package above `terminal` may import it. No decision depends on it. Begin with `logs.py`, and
with `metrics.py` for what is counted.
"""
