"""Updates: on the wire and as classes, and what is said of those that are none."""

import pytest
from pydantic import TypeAdapter, ValidationError

from rebaser_core.codecs import MAX_DEPTH
from rebaser_core.updates import PutValue, SetComputed, SetInputs, SetValue, UpdateList
from rebaser_core.versioning import first_error
from tests.wire.samples import EVERY_UPDATE, FUNC, ONE, RESULTS, TWO

LIST = TypeAdapter(UpdateList)


def said_of(*updates):
    with pytest.raises(ValidationError) as caught:
        LIST.validate_python(updates)
    return first_error(caught.value)


def test_classes_and_wire_forms_may_be_mixed():
    update = SetValue(value_id=ONE, value=1)

    assert LIST.validate_python([update, update.to_wire()]) == [update, update]


def test_defaults_are_left_out():
    assert PutValue(value_id=ONE).to_wire() == {"putValue": {"valueId": ONE}}
    assert PutValue(value_id=ONE, value=None).to_wire() == {"putValue": {"valueId": ONE}}
    assert SetComputed(value_id=ONE, failed="x").to_wire() == {
        "setComputed": {"valueId": ONE, "failed": "x"}
    }


def test_setting_a_value_to_null_says_so():
    assert SetValue(value_id=ONE, value=None).to_wire() == {
        "setValue": {"valueId": ONE, "value": None}
    }


def test_null_inside_a_value_stays():
    value = {"a": None, "b": [None, {"c": None}]}

    assert PutValue(value_id=ONE, value=value).to_wire()["putValue"]["value"] == value


def test_a_dump_by_pydantic_says_the_same():
    dumped = LIST.dump_python(EVERY_UPDATE + RESULTS, mode="json")

    assert dumped == [update.to_wire() for update in EVERY_UPDATE + RESULTS]


@pytest.mark.parametrize("update", [1, "putValue", None, [], {}, {"setValue": {}, "putValue": {}}])
def test_an_update_is_an_object_with_its_kind(update):
    assert said_of(update) == "0: an update is an object with one key, its kind"


def test_the_error_for_an_unknown_kind_lists_the_known_ones():
    assert said_of({"dropTable": {}}) == (
        "0: no update is called 'dropTable'; there are putFunc, removeFunc, putValue, setValue, "
        "setInputs, removeValue, setComputed"
    )


@pytest.mark.parametrize(
    ("update", "says"),
    [
        ({"setValue": 5}, "Input should be a valid dictionary or instance of SetValue"),
        ({"setValue": {"valueId": ONE}}, "0.value: Field required"),
        ({"setValue": {"value": 1}}, "0.valueId: Field required"),
        ({"setValue": {"valueId": ONE, "value": 1, "name": "x"}}, "0.name: Extra inputs are not"),
        ({"setValue": {"value_id": ONE, "value": 1}}, "0.valueId: Field required"),
        ({"setValue": {"valueId": "one", "value": 1}}, "0.valueId: Input should be a ULID"),
        ({"setValue": {"valueId": ONE.lower(), "value": 1}}, "0.valueId: Input should be a ULID"),
        ({"setValue": {"valueId": 1, "value": 1}}, "0.valueId: Input should be a valid string"),
        ({"setValue": {"valueId": ONE, "value": float("inf")}}, "0.value: inf is not JSON"),
        ({"setValue": {"valueId": ONE, "value": b"x"}}, "0.value: bytes is not JSON"),
        ({"putValue": {"valueId": ONE, "name": ""}}, "0.name: String should have at least 1"),
        ({"putValue": {"valueId": ONE, "name": "x" * 513}}, "0.name: String should have at most"),
        ({"putFunc": {"funcId": FUNC, "name": "f", "runtime": "java"}}, "'arrow' or 'pyspark'"),
        ({"putFunc": {"funcId": FUNC, "name": "f", "runtime": "cel", "code": "x" * 65_537}}, "655"),
    ],
)  # fmt: skip
def test_a_mistake_is_named_with_its_place(update, says):
    assert says in said_of(update)


@pytest.mark.parametrize(
    "target", [5, None, {}, "x", ONE.lower(), [5], [[ONE]], [ONE, None]], ids=str
)
def test_an_input_is_an_id_or_a_list_of_ids(target):
    assert said_of({"setInputs": {"valueId": ONE, "inputs": {"a": target}}}) == (
        "0.inputs.a: Input should be a value id, a ULID in its canonical text, or a list of them"
    )


@pytest.mark.parametrize("argument", ["", "x" * 129])
def test_an_argument_has_a_name_of_reasonable_length(argument):
    assert "String should have at" in said_of(
        {"setInputs": {"valueId": ONE, "inputs": {argument: TWO}}}
    )


def test_the_first_mistake_is_enough():
    """A report on a million mistakes would cost more than the batch."""
    assert said_of(*[1] * 1000) == "0: an update is an object with one key, its kind"


def test_values_are_bounded_in_depth_wherever_they_are_made():
    deep = []
    for _ in range(MAX_DEPTH - 1):
        deep = [deep]

    assert SetValue(value_id=ONE, value=deep).value == deep
    with pytest.raises(ValidationError, match="nested deeper than 64"):
        SetValue(value_id=ONE, value=[deep])


def test_inputs_keep_their_order():
    inputs = {"b": ONE, "a": [TWO, ONE, TWO]}

    read = LIST.validate_python([SetInputs(value_id=ONE, inputs=inputs).to_wire()])[0]

    assert list(read.inputs.items()) == list(inputs.items())
