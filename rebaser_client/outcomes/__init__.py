"""What became of a batch: its commit, and the values that it left without a result.

The client imports it, and so does the command line. Begin with `batch_outcome.py`.
"""
