"""Spark: its session and JVM, and runs as Spark jobs. The only package that imports PySpark.

`service` and `commands` may import it. Begin with `spark_executor.py`.
"""
