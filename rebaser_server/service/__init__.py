"""What a running Rebaser is composed of: the daemon, its Spark, and `rebaser up` with its own NATS.

Only `commands` may import it. Begin with `composition.py`.
"""
