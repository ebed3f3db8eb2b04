"""What a running Rebaser is composed of: the daemon, its Spark, and `rebaser up` with its own NATS.

It hides in which order the parts start and end. Only `commands` imports it. Begin
with `composition.py`.
"""
