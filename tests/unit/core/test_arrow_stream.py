"""A stream of one record batch is read; what would take more memory than its bytes is not."""

import pyarrow as pa
import pytest

from rebaser_core.errors import MalformedMessage
from rebaser_core.table_updates import read_stream, write_stream

ROWS = pa.RecordBatch.from_pydict({"id": ["a", "b"], "set": [True, None], "n": [1, None]})


def stream_of(*batches, schema=ROWS.schema, **options):
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema, options=pa.ipc.IpcWriteOptions(**options)) as stream:
        for batch in batches:
            stream.write_batch(batch)
    return sink.getvalue().to_pybytes()


def test_what_is_written_is_read():
    assert read_stream(write_stream(ROWS).to_pybytes()) == ROWS


def test_rows_cut_out_of_others_are_written_alone():
    many = pa.RecordBatch.from_pydict({"id": [str(number) for number in range(10_000)]})

    written = write_stream(many.slice(5_000, 2))

    assert len(written) < 1_000
    assert read_stream(written.to_pybytes()).column("id").to_pylist() == ["5000", "5001"]


@pytest.mark.parametrize("codec", ["zstd", "lz4"])
def test_a_compressed_stream_is_not_read(codec):
    with pytest.raises(MalformedMessage, match="compressed"):
        read_stream(stream_of(ROWS, compression=codec))


def test_no_batch_and_two_batches_are_refused():
    with pytest.raises(MalformedMessage):
        read_stream(stream_of())
    with pytest.raises(MalformedMessage, match="one record batch alone"):
        read_stream(stream_of(ROWS, ROWS))


def test_a_dictionary_is_refused():
    rows = pa.RecordBatch.from_pydict({"id": pa.array(["a"]).dictionary_encode()})

    with pytest.raises(MalformedMessage, match="dictionary"):
        read_stream(stream_of(rows, schema=rows.schema))


def test_damage_anywhere_is_read_as_other_rows_or_refused():
    sound = stream_of(ROWS)
    for at in range(len(sound)):
        for damaged in (sound[:at], sound[:at] + bytes([sound[at] ^ 0xFF]) + sound[at + 1 :]):
            try:
                rows = read_stream(damaged)
            except MalformedMessage:
                continue
            rows.validate(full=True)
