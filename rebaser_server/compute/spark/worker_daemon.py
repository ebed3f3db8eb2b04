"""Spark's daemon of Python workers, which are forked from it with everything imported already."""

import gc

import pandas as pd
import pyarrow as pa
from pyspark.daemon import manager

from rebaser_server.compute.spark import spark_job, table_tasks

__all__ = ["pa", "pd", "spark_job", "table_tasks"]

if __name__ == "__main__":
    # Workers collect garbage after each task: to look through all that is imported takes longer
    # than a small task, and has them copy it.
    gc.freeze()
    manager()
