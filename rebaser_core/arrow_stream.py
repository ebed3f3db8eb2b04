"""Arrow IPC streams of one record batch, without compression: they take the memory of their bytes.

Takes pyarrow, which clients may do without.
"""

import struct
from typing import Any, Final

import pyarrow as pa

from rebaser_core.errors import MalformedMessage

_HEADER: Final = 2  # place of the header in the table Message of Arrow's Message.fbs
_COMPRESSION: Final = 3  # place of the compression in its table RecordBatch


def write_stream(rows: pa.RecordBatch) -> pa.Buffer:
    """The rows as a stream, the same for the same rows and release of pyarrow."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_batch(rows)
    return sink.getvalue()


def read_stream(payload: bytes) -> pa.RecordBatch:
    """The rows of a stream, every buffer of which is checked; they share the payload's memory.

    Raises:
        MalformedMessage: it is none, or compressed, or of more than one record batch.
    """
    try:
        messages = pa.ipc.MessageReader.open_stream(payload)
        schema = pa.ipc.read_schema(messages.read_next_message())
        message = messages.read_next_message()
        if message.type != "record batch":
            raise MalformedMessage(f"a table with a {message.type}; it has one record batch alone")
        if _is_compressed(message.metadata.to_pybytes()):
            raise MalformedMessage("a table that is compressed; send it as it is")
        rows = pa.ipc.read_record_batch(message, schema)
        rows.validate(full=True)
        _require_end(messages)
    except (pa.ArrowException, ValueError, OSError, EOFError, StopIteration, struct.error) as error:
        raise MalformedMessage(f"a table that is no Arrow IPC stream: {error!s:.200}") from error
    return rows


def _require_end(messages: Any) -> None:
    try:
        message = messages.read_next_message()
    except StopIteration:
        return
    raise MalformedMessage(f"a table with another {message.type}; it has one record batch alone")


def _is_compressed(metadata: bytes) -> bool:
    """Whether a record batch's metadata, a flatbuffer that pyarrow has verified, names a codec."""
    [start] = struct.unpack_from("<I", metadata)
    at = _field(metadata, start, _HEADER)
    [offset] = struct.unpack_from("<I", metadata, at)
    return _field(metadata, at + offset, _COMPRESSION) > 0


def _field(data: bytes, table: int, place: int) -> int:
    """Where a flatbuffer's table has a field; 0: nowhere."""
    [back] = struct.unpack_from("<i", data, table)
    vtable = table - back
    [size] = struct.unpack_from("<H", data, vtable)
    slot = 4 + 2 * place
    if slot >= size:
        return 0
    [offset] = struct.unpack_from("<H", data, vtable + slot)
    return table + offset if offset else 0
