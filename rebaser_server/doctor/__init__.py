"""Checks of a deployment: what is wrong with it, and repairs that are safe at any time.

Only `commands` imports it. Begin with `checks.py`.
"""
