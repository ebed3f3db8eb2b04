"""Reads of a change set's values and history, answered by any Rebaser without changing them.

`service`, `ops` and `commands` may import it. Begin with `query_service.py`, which any
application has, and `value_queries.py`.
"""
