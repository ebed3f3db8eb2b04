"""Evaluation of one unit of work in the process that it is called in, one value or many at a time.

`runs` and `spark` may import it. Begin with `evaluator.py`.
"""
