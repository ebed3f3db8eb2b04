"""Composition of a running Rebaser: the daemon, its Spark, and `rebaser up` with its own NATS.

The package hides in which order the parts start and end. Only `commands` imports it. Begin with
`composition.py`.
"""
