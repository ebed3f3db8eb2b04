"""JSON text, in which every value rests: one text for each value, one at a time or in columns.

The canonical text has sorted keys and no white space, floats as their shortest digits, and differs
for 1, 1.0 and true, and for 0.0 and -0.0. So two values are equal JSON if and only if their texts
are equal.
"""

from typing import Any, Final

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

_SORTED: Final = orjson.OPT_SORT_KEYS
_NUMBERS: Final = orjson.OPT_SERIALIZE_NUMPY
_CHUNK: Final = 2**16


def dumps(data: Any) -> str:
    """The canonical text of plain data, see `rebaser_core.codecs`; a NaN becomes null.

    Raises:
        TypeError: data that JSON cannot express: other types, lone surrogates, more than 64 bits.
    """
    return orjson.dumps(data, option=_SORTED).decode()


def loads(text: str | bytes) -> Any:
    """The plain data of any JSON text. Raises `ValueError`."""
    return orjson.loads(text)


def loads_many(texts: pa.LargeStringArray) -> list[Any]:
    """The plain data of each text. Raises `ValueError`."""
    return list(map(orjson.loads, texts.cast(pa.large_binary()).to_pylist()))


def dumps_numbers(numbers: NDArray[Any]) -> pa.LargeStringArray:
    """The canonical texts of integers of 64 bits, of finite floats or of booleans."""
    if not len(numbers):
        return pa.array([], pa.large_string())
    numbers = np.ascontiguousarray(numbers)
    # Parts, since new memory for all at once takes longer than writing them.
    starts = range(0, len(numbers), _CHUNK)
    return pa.concat_arrays([_dumps_chunk(numbers[start : start + _CHUNK]) for start in starts])


def _dumps_chunk(numbers: NDArray[Any]) -> pa.LargeStringArray:
    dumped = orjson.dumps(numbers, option=_NUMBERS)
    brackets = pa.py_buffer(np.array([1, len(dumped) - 1], np.int64))
    together = pa.LargeStringArray.from_buffers(1, brackets, pa.py_buffer(dumped))
    return pc.split_pattern(together, ",").values
