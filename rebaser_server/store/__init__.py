"""Checkpoints and large results on the shared store: the only package that knows Delta.

`commit_log` and packages above it may import it. Begin with `checkpoints.py`.
"""
