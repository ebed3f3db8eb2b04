"""Spark's daemon of Python workers, which are forked from it with what they need imported already.

Workers fork a child for each unit that has functions of others. That takes as long as the memory is
large which they have from here: what few of them use is left out.
"""

import gc
import os
import sys

# Spark puts archives in front of the path, of packages that are installed beside it as folders, and
# of classes. Python would compile modules from them, and read their directories again in workers.
_ARCHIVES = os.path.join(os.environ.get("SPARK_HOME") or os.devnull, "")  # noqa: PTH118 - a prefix
sys.path[:] = [each for each in sys.path if not each.startswith(_ARCHIVES)]
for _each in [each for each in sys.path_importer_cache if each.startswith(_ARCHIVES)]:
    del sys.path_importer_cache[_each]

from pyspark import worker  # noqa: E402 - by the path of above, as all that follows
from pyspark.daemon import manager  # noqa: E402

from rebaser_server.compute.evaluation import evaluate  # noqa: E402
from rebaser_server.compute.spark import spark_job, table_tasks  # noqa: E402
from rebaser_server.compute.work_unit import WorkUnit  # noqa: E402
from rebaser_server.runtime.late_pandas import defer_pandas  # noqa: E402

__all__ = ["spark_job", "table_tasks", "worker"]

if __name__ == "__main__":
    defer_pandas()
    evaluate(WorkUnit().encode())  # loads what any unit takes
    # Workers collect garbage after each task: to look through all that is imported takes longer
    # than a small task, and has them copy it.
    gc.collect()
    gc.freeze()
    manager()
