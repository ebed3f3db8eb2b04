"""Rows of a table are the updates that they would be one by one, or no updates at all."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rebaser_client.tables import as_table
from rebaser_core import codecs
from rebaser_core.errors import MalformedMessage
from rebaser_core.messages import UpdatesBatch, UpdatesBatchV1
from rebaser_core.table_updates import TableUpdates, with_rows
from rebaser_core.updates import BatchLimits, PlainUpdates, PutFunc, PutValue, RemoveValue, SetValue
from tests.helpers.batches import limits
from tests.wire.samples import FUNC, ONE, REQUEST, SUM, TABLE, TWO
from tests.wire.strategies import unhurried, updates

EITHER = pytest.mark.parametrize("content_type", sorted(codecs.CONTENT_TYPES))
SUM_OF = PutFunc(func_id=FUNC, name="a/sum", runtime="builtin", code="sum")
IDS = pa.array([ONE, TWO])
MANY = pa.list_(pa.string())


def table(**columns):
    return TableUpdates((), pa.RecordBatch.from_pydict({"id": IDS, **columns}))


def inputs_of(*rows, kind=MANY, argument="values"):
    return pa.array(rows, pa.struct([(argument, kind)]))


def is_row(update):
    """Whether a row can be it: no inputs at all are null there."""
    return isinstance(update, SetValue) or (isinstance(update, PutValue) and update.inputs != {})


@unhurried
@given(st.lists(updates, max_size=12).map(lambda batch: list(filter(is_row, batch))))
def test_rows_are_the_updates_that_they_were_made_of(batch):
    made = as_table(batch)

    if made is not None:
        assert made == batch
        assert TableUpdates.decode((), made.encode()) == batch
        assert BatchLimits().violation(made, len(made)) is None


@EITHER
def test_a_batch_with_a_table_is_read_with_its_rows(content_type):
    made = as_table([SUM_OF, PutValue(value_id=ONE, value=1), SetValue(value_id=TWO, value=None)])
    listed, encoded = made.split()
    batch = UpdatesBatchV1(id=REQUEST, updates=listed, table=encoded)
    payload = UpdatesBatch.encode(batch, content_type)[1]

    read = with_rows(UpdatesBatch.decode_stored(payload, from_client=True))

    assert read.updates == made
    assert isinstance(read.updates, TableUpdates)
    assert (read.id, read.table) == (REQUEST, None)


def test_the_table_of_the_golden_bytes_is_read_as_it_was_written():
    golden = TableUpdates.decode((), TABLE)

    assert golden == [
        PutValue(value_id=ONE, name="one", value={"rate": 0.19}),
        PutValue(
            value_id=SUM, name="Grüße", func_id=FUNC, inputs={"values": [ONE, TWO], "rounding": ONE}
        ),
        PutValue(value_id=FUNC[:-1] + "E"),
        SetValue(value_id=TWO, value=-0.0),
    ]


def test_columns_may_be_left_out():
    assert table() == [PutValue(value_id=ONE), PutValue(value_id=TWO)]
    assert table(set=pa.array([True, None])) == [
        SetValue(value_id=ONE, value=None),
        PutValue(value_id=TWO),
    ]


@pytest.mark.parametrize(
    "values",
    [[1, None], [0.5, -0.0], [True, False], ["", 'ä"\n']],
    ids=lambda values: type(values[0]).__name__,
)
def test_values_keep_their_kind(values):
    assert [update.value for update in table(value=pa.array(values))] == values
    assert [type(update.value) for update in table(value=pa.array(values))] == [*map(type, values)]


def test_arguments_that_a_row_has_not_are_null():
    kinds = pa.struct([("values", MANY), ("rate", pa.string())])
    inputs = pa.array([{"values": [TWO, TWO], "rate": None}, None], kinds)

    made = table(function=pa.array([FUNC, None]), inputs=inputs)

    assert made[0] == PutValue(value_id=ONE, func_id=FUNC, inputs={"values": [TWO, TWO]})
    assert made[1].inputs is None


ODD = {
    "no column `id`": {"id": None, "name": pa.array(["a", "b"])},
    "an id that is null": {"id": pa.array([ONE, None])},
    "an id in lower case": {"id": pa.array([ONE, TWO.lower()])},
    "an id that is too long": {"id": pa.array([ONE, TWO + "0"])},
    "an id with a line break": {"id": pa.array([ONE, TWO + "\n"])},
    "ids that are numbers": {"id": pa.array([1, 2])},
    "an unknown column": {"colour": pa.array(["red", "blue"])},
    "values twice": {"value": pa.array([1, 2]), "json": pa.array(["1", "2"])},
    "values of 32 bits": {"value": pa.array([1, 2], pa.int32())},
    "a value that is not finite": {"value": pa.array([1.0, float("nan")])},
    "JSON that is none": {"json": pa.array(["1", "{"])},
    "a name without characters": {"name": pa.array(["a", ""])},
    "a name that is too long": {"name": pa.array(["a", "ä" * 513])},
    "a function that has no id": {"function": pa.array(["sum", None])},
    "inputs that are no struct": {"inputs": pa.array([[ONE], [ONE]])},
    "an input that has no id": {"inputs": inputs_of({"values": ["one"]}, None)},
    "an input that is null": {"inputs": inputs_of({"values": [ONE, None]}, None)},
    "inputs that are numbers": {"inputs": inputs_of({"values": 1}, None, kind=pa.int64())},
    "an argument without a name": {"inputs": inputs_of(None, None, argument="")},
    "an argument with a long name": {"inputs": inputs_of(None, None, argument="a" * 129)},
    "too many arguments": {
        "inputs": pa.array([{}, {}], pa.struct([(f"a{n}", MANY) for n in range(65)]))
    },
    "a set with a name": {"set": pa.array([True, False]), "name": pa.array(["a", None])},
    "a set with inputs": {
        "set": pa.array([True, False]),
        "inputs": inputs_of({"values": []}, None),
    },
}


@pytest.mark.parametrize("columns", ODD.values(), ids=ODD)
def test_what_is_no_update_is_refused(columns):
    columns = {"id": IDS, **columns}
    rows = pa.RecordBatch.from_pydict({k: v for k, v in columns.items() if v is not None})

    with pytest.raises(MalformedMessage):
        TableUpdates((), rows)


@pytest.mark.parametrize("encoded", ["", "ä", "AAAA", "/////wAAAAA="])
def test_what_is_no_table_is_refused(encoded):
    with pytest.raises(MalformedMessage):
        TableUpdates.decode((), encoded)


LIMITS = limits(batch_updates=3, value_bytes=20, inputs=2, name_depth=2)
WITHIN = {
    "a value of the size": PutValue(value_id=ONE, value="x" * 18),
    "escapes of the size": PutValue(value_id=ONE, value='"' * 9),
    "JSON of the size": PutValue(value_id=ONE, value=["x" * 16]),
    "a number": PutValue(value_id=ONE, value=1e300),
    "a name of the depth": PutValue(value_id=ONE, name="a/b"),
    "as many inputs": PutValue(value_id=ONE, func_id=FUNC, inputs={"values": [SUM, TWO]}),
}
BEYOND = {
    "a text": PutValue(value_id=ONE, value="x" * 19),
    "a text with escapes": PutValue(value_id=ONE, value="x" + '"' * 9),
    "JSON": PutValue(value_id=ONE, value=["x" * 17]),
    "a text that is set": SetValue(value_id=ONE, value="x" * 19),
    "a name": PutValue(value_id=ONE, name="a/b/c"),
    "inputs": PutValue(value_id=ONE, func_id=FUNC, inputs={"values": [SUM, TWO], "rate": TWO}),
}


@pytest.mark.parametrize("update", [*WITHIN.values(), *BEYOND.values()], ids=[*WITHIN, *BEYOND])
def test_limits_hold_for_a_table_as_for_rows(update):
    batch = [SUM_OF, PutValue(value_id=TWO), update]

    said = LIMITS.violation(as_table(batch), 3)

    assert said == LIMITS.violation(batch, 3)
    assert (said is None) == (update in WITHIN.values())


def test_no_more_rows_than_updates_are_allowed():
    assert "at most 3" in str(LIMITS.violation(as_table([PutValue(value_id=ONE)] * 4), 4))


def test_limits_hold_for_what_stands_before_the_table():
    deep = PutFunc(func_id=FUNC, name="a/b/c", runtime="builtin")
    before = as_table([RemoveValue(value_id=ONE), PutValue(value_id=ONE)])

    assert "a name of 3 parts" in str(LIMITS.violation(as_table([deep, PutValue(value_id=ONE)]), 2))
    assert LIMITS.violation(before, 2) is None


def test_rows_of_a_table_are_in_a_batch_of_rows_what_they_are():
    made = as_table([PutValue(value_id=ONE, name="one", value=1), SetValue(value_id=TWO, value=2)])

    assert PlainUpdates.read(made.to_wire()) == made
