"""Dependent values updates: what is affected is planned here and evaluated on Spark.

From the outside in: `spark` (the only package that imports PySpark), `executors`, `plan` and
`evaluation`, `functions`, `work_unit`. `graph_application` and packages above it may import it.
Begin with `plan.py`, which turns a graph's roots into units of work, and `executors.py`, which
says what an executor makes of these.
"""
