"""What runs in Pathway's own environment: arrays from one file, values to another, seconds told."""

import sys
import time

import numpy as np
import pandas as pd
import pathway as pw

given, taken = sys.argv[1:]
data = np.load(given)
flat, constants = data["flat"], data["constants"]
count = len(flat)


def table(places: np.ndarray, **columns: np.ndarray) -> pw.Table:
    return pw.debug.table_from_pandas(pd.DataFrame({"key": places, **columns}), id_from=["key"])


known = table(np.arange(count, count + len(constants)), v=constants)
for start, end in zip(data["bounds"][:-1], data["bounds"][1:], strict=True):
    places = data["places"][start:end]
    level = table(places, a=flat[places, 0], b=flat[places, 1], c=flat[places, 2])
    a, b, c = (known.ix(known.pointer_from(level[name])).v for name in "abc")
    computed = level.select(key=pw.this.key, v=(a * b + c) / 2)
    known = known.update_rows(computed)
started = time.perf_counter()
found = pw.debug.table_to_pandas(known, include_id=False)
seconds = time.perf_counter() - started
values = np.empty(count + len(constants))
values[found["key"].to_numpy()] = found["v"].to_numpy()
np.save(taken, values[:count])
print(seconds)
