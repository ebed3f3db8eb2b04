"""Asking: enqueue updates and await their outcome."""
