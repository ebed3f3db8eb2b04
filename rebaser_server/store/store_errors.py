"""What errors of Delta, Arrow and the operating system say about the store."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import pyarrow as pa
from deltalake.exceptions import DeltaError

from rebaser_server.runtime.failures import StoreDamaged, StoreFailed

_DAMAGE: Final = re.compile(
    "corrupt|json error|parquet error|invalid checkpoint|found gap|logsegment"
    "|no table metadata or protocol found|requested range was invalid",
    re.IGNORECASE,
)
"""Delta has one error for everything: its text alone tells a damaged file from a store that is
away. The last one is a file that is shorter than it was."""


@contextmanager
def translate_store_errors() -> Iterator[None]:
    """Raise `StoreDamaged` or `StoreFailed` in place of the libraries' own errors."""
    try:
        yield
    except StoreFailed:
        raise
    except (FileNotFoundError, pa.ArrowInvalid) as error:
        raise StoreDamaged(_first_line(error)) from error
    except (DeltaError, OSError) as error:
        damaged = _DAMAGE.search(str(error))
        raise (StoreDamaged if damaged else StoreFailed)(_first_line(error)) from error


def _first_line(error: Exception) -> str:
    """The message without the stack trace that Delta adds."""
    return str(error).partition("\n")[0]
