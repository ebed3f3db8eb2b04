"""Spark's daemon of Python workers, which are forked from it with everything imported already."""

import pyarrow as pa
from pyspark.daemon import manager

from rebaser_server.dvu import stage

__all__ = ["pa", "stage"]

if __name__ == "__main__":
    manager()
