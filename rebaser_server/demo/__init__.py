"""`rebaser demo`: which Debian packages does one security fix reach? With real NATS and Spark.

`commands` imports it. Begin with `run.py`.
"""
