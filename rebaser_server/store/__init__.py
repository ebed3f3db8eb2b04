"""Checkpoints and large results on the shared store: the only place that knows Delta."""
