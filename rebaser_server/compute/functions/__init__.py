"""Functions that values are computed by: builtins, CEL, Python, each for one value or for many.

`evaluate` may import it. Begin with `runtimes.py`.
"""
