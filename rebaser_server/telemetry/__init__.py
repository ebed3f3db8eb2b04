"""What a process tells of its own work: logs, metrics, traces, and statistics for the status page.

Every package above `terminal` may import it. Nothing decides by what is in here. Begin
with `logs.py`, and with `metrics.py` for what is counted.
"""
