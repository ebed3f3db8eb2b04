"""Checkpoints of graphs on the shared store: the only package that knows Delta.

`graph_application` and packages above it may import it. Begin with `checkpoints.py`.
"""
