"""What errors of Delta, Arrow and the operating system say about the store.

What was read completely and cannot be decoded is damaged, whatever the decoder says of it. That
the store is away is only what the transport says: an operating system by the number of an
error, an object store's client by a text of its own.
"""

import errno
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import pyarrow as pa
from deltalake.exceptions import CommitFailedError, DeltaError

from rebaser_server.runtime.failures import StoreDamaged, StoreFailed, is_panic

_GONE: Final = re.compile(
    "not found|no such file|requested range was invalid|file name too long", re.IGNORECASE
)
"""A file that is not there, or is shorter than it was; or a name that cannot be one."""

_AWAY: Final = re.compile(
    r"generic \w+ error|\bos error \d|lacked (the necessary privileges|valid authentication)"
    r"|error joining spawned task|error sending request|operation timed out"
    r"|\b(aws|google|azure)\w* error|can't spawn|resources exhausted",
    re.IGNORECASE,
)
"""Texts of the clients of stores: `object_store`, which Delta uses, and Arrow's. And those of a
machine that lacks threads or memory."""

_DECODING: Final = (ValueError, LookupError, TypeError, ArithmeticError, pa.ArrowException)
_BAD_NAME: Final = (errno.ENAMETOOLONG, errno.EISDIR, errno.EINVAL)


@contextmanager
def translate_store_errors(path: str = "") -> Iterator[None]:
    """Raise `StoreDamaged` or `StoreFailed` in place of the libraries' own errors.

    `path`: the file that is read, to be named.
    """
    try:
        yield
    except StoreFailed:
        raise
    except (*_DECODING, DeltaError, OSError) as error:
        raise _translated(error, path) from error
    except BaseException as error:
        if not is_panic(error):
            raise
        raise _translated(error, path) from error


def _translated(error: BaseException, path: str) -> StoreFailed:
    text = str(error).partition("\n")[0]  # without the stack trace that Delta adds
    text = f"{path}: {text}" if path else text or type(error).__name__
    return StoreDamaged(text) if _is_damage(error) else StoreFailed(text)


def _is_damage(error: BaseException) -> bool:
    if isinstance(error, FileNotFoundError):
        return True
    if isinstance(error, CommitFailedError | TimeoutError | ConnectionError):
        return False
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno in _BAD_NAME
    text = str(error)
    return _GONE.search(text) is not None or _AWAY.search(text) is None
