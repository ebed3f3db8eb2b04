"""Dependent values updates: what is affected is planned here and evaluated on Spark.

`plan` turns a graph's roots into blobs, an `Executor` turns blobs into outcomes.
Nothing outside this package imports pyspark, and nothing in it before the first
run needs one.
"""
