"""What a batch does to a graph, and the three-way merge of head into a branch: pure, no I/O.

The packages above `values` may import it. Begin with `rebase.py`; `merge.py` builds on it.
"""
