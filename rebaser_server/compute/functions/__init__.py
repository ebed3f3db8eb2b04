"""Functions that compute values: builtins, CEL, Python, each for one value or for many.

`compute` alone imports it. Begin with `runtimes.py`.
"""
