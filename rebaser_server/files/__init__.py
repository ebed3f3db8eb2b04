"""Whole files under the store's root, on a disk or an object store.

`store`, `commit_log`, `compute` and packages above them may import it. Begin with
`shared_files.py`.
"""
