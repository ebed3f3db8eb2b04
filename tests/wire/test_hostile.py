"""Whatever arrives is a message or a `MessageError`: never another error, never a wait."""

import time

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rebaser_core import codecs
from rebaser_core.errors import MalformedMessage, MessageError, NewerVersion, UnsupportedMessage
from rebaser_core.messages import EnqueueUpdatesRequest, EnqueueUpdatesResponse, UpdatesBatch
from rebaser_core.versioning import CONTENT_TYPE, MESSAGE_ID, MESSAGE_TYPE, MESSAGE_VERSION
from tests.wire.samples import DIGEST, OBJECT, ONE, REQUEST, SAMPLES, TYPES, WHERE, request
from tests.wire.strategies import content_types, unhurried

BOTH = pytest.mark.parametrize("content_type", [codecs.CBOR, codecs.JSON])
EVERY_TYPE = pytest.mark.parametrize("name", TYPES)
NAMES = (CONTENT_TYPE, MESSAGE_TYPE, MESSAGE_VERSION, MESSAGE_ID)

HEADERS = {
    CONTENT_TYPE: codecs.JSON,
    MESSAGE_TYPE: "EnqueueUpdatesRequest",
    MESSAGE_VERSION: "1",
}


def decoded(headers, payload, name="EnqueueUpdatesRequest"):
    """The message, or the error that is allowed; any other error fails the test."""
    try:
        return TYPES[name].decode(headers, payload)
    except MessageError as error:
        outcome = error
    assert len(str(outcome)) < 1000
    return outcome


def body(**fields):
    """A request as JSON has it, with `fields` put in or, where `...`, left out."""
    whole = request(OBJECT).to_wire() | fields
    return {"v1": {name: value for name, value in whole.items() if value is not ...}}


def refusal(data, content_type=codecs.JSON, **headers):
    """What is said of a request that must be refused."""
    payload = data if isinstance(data, bytes) else codecs.dumps(content_type, data)
    with pytest.raises(MalformedMessage) as caught:
        EnqueueUpdatesRequest.decode({**HEADERS, CONTENT_TYPE: content_type, **headers}, payload)
    return str(caught.value)


# Anything at all.


@EVERY_TYPE
@unhurried
@given(payload=st.binary(max_size=200), content_type=content_types)
def test_any_bytes_are_a_message_or_a_message_error(name, payload, content_type):
    headers = {CONTENT_TYPE: content_type, MESSAGE_TYPE: name, MESSAGE_VERSION: "1"}

    outcome = decoded(headers, payload, name)

    assert isinstance(outcome, (TYPES[name].current, MessageError))


@unhurried
@given(
    headers=st.dictionaries(
        st.sampled_from(NAMES) | st.text(max_size=8),
        st.sampled_from([codecs.CBOR, codecs.JSON, *TYPES, "1", "2"]) | st.text(max_size=12),
    ),
    sample=st.sampled_from(SAMPLES),
    content_type=content_types,
)
def test_any_headers_are_judged(headers, sample, content_type):
    payload = sample.payload(content_type)

    outcome = decoded({**sample.headers(content_type), **headers}, payload, sample.type_name)

    assert outcome == sample.read or isinstance(outcome, MessageError)


@st.composite
def mutilated(draw, payload):
    """`payload` with pieces cut out, put in, repeated or overwritten."""
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(payload)))
        end = draw(st.integers(start, min(len(payload), start + 20)))
        piece = draw(st.binary(max_size=9) | st.just(payload[start:end] * 2))
        payload = payload[:start] + piece + payload[end:]
    return payload


@unhurried
@given(data=st.data(), sample=st.sampled_from(SAMPLES), content_type=content_types)
def test_a_mutilated_message_is_a_message_or_a_message_error(data, sample, content_type):
    payload = data.draw(mutilated(sample.payload(content_type)))
    kind = TYPES[sample.type_name]

    outcome = decoded(sample.headers(content_type), payload, sample.type_name)

    if not isinstance(outcome, MessageError):  # still a message: then one that can be repeated
        assert kind.decode(*kind.encode(outcome, content_type)) == outcome


junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=30) | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@unhurried
@given(data=st.data(), sample=st.sampled_from(SAMPLES))
def test_a_message_with_junk_in_one_place_is_a_message_or_a_message_error(data, sample):
    plain = codecs.loads(codecs.CBOR, sample.payload(codecs.CBOR))
    place = plain
    while True:
        key = data.draw(st.sampled_from(list(place) if isinstance(place, dict) else [0]))
        if not isinstance(place[key], (dict, list)) or not place[key] or data.draw(st.booleans()):
            break
        place = place[key]
    place[key] = data.draw(junk)

    outcome = decoded(sample.headers(codecs.CBOR), cbor2.dumps(plain), sample.type_name)

    assert isinstance(outcome, (TYPES[sample.type_name].current, MessageError))


# What is never a message, by name.


@pytest.mark.parametrize(
    ("content_type", "payload", "says"),
    [
        (codecs.JSON, b"", "Expecting value"),
        (codecs.CBOR, b"", "premature end"),
        (codecs.JSON, b'{"v1":', "Expecting value"),
        (codecs.JSON, b"{} {}", "Extra data"),
        (codecs.CBOR, b"\xa0\xa0", "left over"),
        (codecs.JSON, b"[" * 100_000, "recursion"),
        (codecs.CBOR, b"\x81" * 100_000, "nesting depth"),
        (codecs.JSON, b"[" * 90 + b"]" * 90, "nested deeper than 80"),
        (codecs.JSON, b"NaN", "NaN is not JSON"),
        (codecs.JSON, b"-Infinity", "-Infinity is not JSON"),
        (codecs.JSON, b"1e999", "inf is not JSON"),
        (codecs.CBOR, b"\xf9\x7e\x00", "nan is not JSON"),
        (codecs.CBOR, b"\xf9\x7c\x00", "inf is not JSON"),
        (codecs.JSON, b"9223372036854775808", "beyond 64 bits"),
        (codecs.JSON, b"-9223372036854775809", "beyond 64 bits"),
        (codecs.JSON, b"1" * 10_000, "digits"),
        (codecs.CBOR, b"\x1b" + b"\xff" * 8, "beyond 64 bits"),
        (codecs.CBOR, b"\x3b" + b"\xff" * 8, "beyond 64 bits"),
        (codecs.CBOR, b"\xc2\x49\x01" + b"\x00" * 8, "tags are not allowed"),
        (codecs.CBOR, b"\xc0\x741985-04-12T23:20:50Z", "tags are not allowed"),
        (codecs.CBOR, b"\xd9\x30\x39\x01", "tags are not allowed"),
        (codecs.CBOR, b"\xd9\xd9\xf7\xa0", "tags are not allowed"),
        (codecs.CBOR, b"\x41a", "bytes is not JSON"),
        (codecs.CBOR, b"\xf7", "UndefinedType is not JSON"),
        (codecs.CBOR, b"\xe0", "CBORSimpleValue is not JSON"),
        (codecs.CBOR, b"\xff", "break code"),
        (codecs.CBOR, b"\xa1\x01\x02", "key must be a text string"),
        (codecs.CBOR, b"\xa1\x41a\x02", "key is not text"),
        (codecs.JSON, b'{"a":1,"a":1}', "key twice"),
        (codecs.CBOR, b"\xa2\x61a\x01\x61a\x01", "Duplicate map key"),
        (codecs.JSON, b'"\\ud800"', "surrogate"),
        (codecs.JSON, b'{"\\udc00":1}', "surrogate"),
        (codecs.JSON, b'"\xed\xa0\x80"', "can't decode"),
        (codecs.CBOR, b"\x63\xed\xa0\x80", "can't decode"),
        (codecs.JSON, b'"\xff"', "can't decode"),
        (codecs.JSON, '{"v1":1}'.encode("utf-16"), "can't decode"),
        (codecs.JSON, '{"v1":1}'.encode("utf-16-le"), "property name"),
        (codecs.JSON, '{"v1":1}'.encode("utf-8-sig"), "BOM"),
        (codecs.CBOR, b"\x9b" + b"\xff" * 8, "premature end"),
        (codecs.CBOR, b"\xbb" + b"\xff" * 8, "premature end"),
        (codecs.CBOR, b"\x5b\x00\x00\x00\xff" + b"\xff" * 4, "premature end"),
        (codecs.CBOR, b"\x7b\x00\x00\x00\xff" + b"\xff" * 4, "premature end"),
        (codecs.CBOR, b"\x9a\xff\xff\xff\xff" * 60, "premature end"),
    ],
)
def test_data_that_is_not_plain_is_malformed(content_type, payload, says):
    assert says in refusal(payload, content_type)


@BOTH
@pytest.mark.parametrize(
    "data",
    [1, "v1", [], {}, {"v1": {}, "v2": {}}, {"1": {}}, {"v0": {}}, {"v01": {}}, {"V1": {}}],
    ids=str,
)
def test_a_body_has_its_version_as_its_one_key(data, content_type):
    assert "version as one key" in refusal(data, content_type)


@BOTH
@pytest.mark.parametrize("tag", ["v2", "v999999999"])
def test_a_body_that_disagrees_with_its_header_is_malformed(tag, content_type):
    """Not merely newer: nobody will ever be able to read it, so it must not be kept waiting."""
    said = refusal({tag: body()["v1"]}, content_type)

    assert said == f"EnqueueUpdatesRequest: headers say version 1, the body {tag[1:]}"


def test_an_old_body_under_a_newer_header_is_malformed():
    sample = next(s for s in SAMPLES if str(s) == "EnqueueUpdatesResponse-v1")
    headers = {**sample.headers(codecs.CBOR), MESSAGE_VERSION: "2"}

    with pytest.raises(MalformedMessage, match="headers say version 2, the body 1"):
        EnqueueUpdatesResponse.decode(headers, sample.payload(codecs.CBOR))


# Headers alone.


@pytest.mark.parametrize("name", [CONTENT_TYPE, MESSAGE_TYPE, MESSAGE_VERSION])
def test_a_missing_header_is_named(name):
    assert refusal(b"never read", **{name: ""}) == f"headers missing: {name}"


def test_no_headers_at_all_are_malformed():
    with pytest.raises(MalformedMessage, match="X-CONTENT-TYPE, X-MESSAGE-TYPE, X-MESSAGE-VERSION"):
        EnqueueUpdatesRequest.decode({}, b"")


@pytest.mark.parametrize("version", ["0", "-1", "1.0", "one", " 1", "+1", "1_0", "٢", "9" * 5000])
def test_a_version_that_is_no_positive_integer_is_malformed(version):
    assert "X-MESSAGE-VERSION is no positive integer" in refusal(b"", **{MESSAGE_VERSION: version})


@EVERY_TYPE
def test_a_newer_version_is_refused_by_name_and_left_unread(name):
    known = TYPES[name].current.VERSION
    headers = {CONTENT_TYPE: codecs.CBOR, MESSAGE_TYPE: name, MESSAGE_VERSION: str(known + 1)}

    with pytest.raises(NewerVersion) as caught:
        TYPES[name].decode(headers, None)  # whoever touches it fails

    assert str(caught.value) == f"{name} version {known + 1}; this build reads up to {known}"


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        (MESSAGE_TYPE, "Commit", "message type 'Commit' is not 'EnqueueUpdatesRequest'"),
        (CONTENT_TYPE, "text/xml", "this build reads application/cbor, application/json"),
        (CONTENT_TYPE, "application/json; charset=latin-1", "messages are in UTF-8"),
        (MESSAGE_TYPE, "x" * 100_000, "message type"),
    ],
)
def test_unknown_versions_are_left_unread(name, value, says):
    with pytest.raises(UnsupportedMessage, match=says) as caught:
        EnqueueUpdatesRequest.decode({**HEADERS, name: value}, None)

    assert not isinstance(caught.value, NewerVersion)
    assert len(str(caught.value)) < 250


def test_a_message_id_that_is_not_the_requests_is_malformed():
    assert "Nats-Msg-Id is 'other', the id is" in refusal(body(), **{MESSAGE_ID: "other"})
    assert "Nats-Msg-Id is 'other', the id is" in refusal(body(), **{MESSAGE_ID: "other.more"})


def test_a_newer_batch_at_rest_is_refused_by_name():
    with pytest.raises(NewerVersion, match="UpdatesBatch: the body is of version 9"):
        UpdatesBatch.decode_stored(b'{"v9":{}}')


# Shapes are strict.

ULID_SAYS = "Input should be a ULID in its canonical text"


@BOTH
@pytest.mark.parametrize("field", ["id", "workspaceId", "changeSetId", "fromChangeSetId"])
@pytest.mark.parametrize(
    "value",
    [5, -1, 1.5, True, [], {}, "", "x", str(REQUEST).lower(), "8" + "0" * 25, "U" * 26, "é" * 26],
    ids=str,
)
def test_an_id_is_a_ulid_in_its_canonical_text(field, value, content_type):
    """In any other form it would name other subjects, and other messages to the server."""
    assert ULID_SAYS in refusal(body(**{field: value}), content_type)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"id": None}, f"id: {ULID_SAYS}"),
        ({"changeSetId": ...}, "changeSetId: Field required"),
        ({"more": 1}, "more: Extra inputs are not permitted"),
        ({"workspace_id": str(REQUEST)}, "workspace_id: Extra inputs are not permitted"),
        ({"updatesAddress": None}, "an address is an object with one key: inline, object or store"),
        ({"updatesAddress": {}}, "an address is an object with one key: inline, object or store"),
        ({"updatesAddress": {"object": DIGEST, "store": "a"}}, "an object with one key"),
        ({"updatesAddress": {"url": "a"}}, "an object with one key"),
        ({"updatesAddress": {"object": DIGEST[1:]}}, "updatesAddress.object: String should match"),
        ({"updatesAddress": {"object": DIGEST + "\n"}}, "updatesAddress.object: String should"),
        ({"updatesAddress": {"store": "../etc/passwd"}}, "updatesAddress.store: String should"),
        ({"updatesAddress": {"inline": [1]}}, "updatesAddress.inline: Input should be a valid"),
    ],
)
def test_a_request_is_of_its_shape(fields, says):
    assert says in refusal(body(**fields))


@pytest.mark.parametrize("value", ["1", 1.0, True, -1, None, [], 2**63 - 1 + 0.0])
@pytest.mark.parametrize("field", ["covers", "commit"])
def test_an_integer_is_nothing_else(field, value):
    computed = {"claim": str(REQUEST), "covers": 1, "commit": 1, field: value}
    address = {"inline": {"updates": [], "computed": computed}}

    assert f"computed.{field}: Input should be" in refusal(body(updatesAddress=address))


def test_a_status_is_success_or_error():
    headers = {**HEADERS, MESSAGE_TYPE: "EnqueueUpdatesResponse", MESSAGE_VERSION: "2"}
    where = {name.replace("_i", "I").replace("_s", "S"): str(i) for name, i in WHERE.items()}
    payload = codecs.dumps(codecs.JSON, {"v2": {"id": str(REQUEST), **where, "status": {"ok": 1}}})

    with pytest.raises(MalformedMessage, match="a status is an object with one key: success or"):
        EnqueueUpdatesResponse.decode(headers, payload)


@BOTH
def test_a_value_nested_too_deep_is_refused_with_its_request(content_type):
    deep = [[]]
    for _ in range(codecs.MAX_DEPTH - 1):
        deep = [deep]
    address = {"inline": {"updates": [{"setValue": {"valueId": ONE, "value": deep}}]}}

    said = refusal(body(updatesAddress=address), content_type)

    assert "updates.0.value: nested deeper than 64" in said


# Time and memory grow with the payload, not faster.

MANY = 300_000


@pytest.mark.parametrize(
    ("content_type", "payload"),
    [
        (codecs.CBOR, b"\x7f" + b"\x61a" * MANY + b"\xff"),
        (codecs.CBOR, b"\x9f" + b"\x80" * MANY + b"\xff"),
        (codecs.CBOR, b"\x9a" + MANY.to_bytes(4, "big") + b"\xf9\x7e\x00" * MANY),
        (codecs.JSON, b"[" + b"[]," * MANY + b"1]"),
        (codecs.JSON, b"[" + b"1" * 4000 + (b"," + b"1" * 4000) * 200 + b"]"),
        (codecs.JSON, b"0." + b"1" * (4 * MANY)),
        (codecs.JSON, b"1e" + b"1" * (4 * MANY)),
        (codecs.JSON, b'"' + b"\\ud83d\\ude00" * (MANY // 4) + b'"'),
        (codecs.JSON, b'"' + b"\\" * (4 * MANY)),
        (codecs.JSON, b'{"v1":{"updates":[' + b"1," * MANY + b"1]}}"),
        (codecs.JSON, codecs.dumps(codecs.JSON, {"v1": {f"a{i}": i for i in range(MANY // 8)}})),
    ],
    ids=["chunks", "lists", "nans", "json lists", "long integers", "long fraction", "long exponent",
         "surrogate pairs", "backslashes", "bad updates", "unknown fields"],
)  # fmt: skip
def test_a_hostile_payload_is_judged_at_once(content_type, payload):
    started = time.process_time()

    refusal(payload, content_type)

    assert time.process_time() - started < 3  # under a second here; quadratic would be minutes
