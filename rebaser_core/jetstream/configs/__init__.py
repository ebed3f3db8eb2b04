"""Configurations of streams and consumers, and how two of them differ."""
