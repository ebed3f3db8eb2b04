"""A new version is one class and one upgrade: shown with a message of three versions."""

from enum import StrEnum
from typing import Annotated, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from rebaser_core import codecs
from rebaser_core.errors import MalformedMessage, NewerVersion, UnsupportedMessage
from rebaser_core.ids import RequestId
from rebaser_core.versioning import (
    ContentInfo,
    JsonValue,
    MessageType,
    ParseFromJson,
    Versioned,
    WireModel,
    first_error,
)

ID = RequestId.from_int(7)


class Colour(StrEnum):
    RED = "red"


class GreetingV1(Versioned):
    VERSION: ClassVar = 1
    text: str

    def upgrade(self):
        return GreetingV2(id=self.id, text=self.text, to_whom="world")


class GreetingV2(Versioned):
    VERSION: ClassVar = 2
    text: str
    to_whom: str

    def upgrade(self):
        return GreetingV3(id=self.id, words=(self.text, self.to_whom))


class GreetingV3(Versioned):
    VERSION: ClassVar = 3
    words: Annotated[tuple[str, ...], ParseFromJson]
    colour: Annotated[Colour, ParseFromJson] | None = None
    extra: JsonValue = None


OLD = MessageType("Greeting", GreetingV1, current=GreetingV2)
GREETING = MessageType("Greeting", GreetingV1, GreetingV2, current=GreetingV3)


def written(message, content_type=codecs.CBOR):
    """As a build wrote it to which that version was current."""
    version = message.VERSION
    headers = ContentInfo(content_type, "Greeting", version).headers()
    return headers, codecs.dumps(content_type, {f"v{version}": message.to_wire()})


@pytest.mark.parametrize("content_type", sorted(codecs.CONTENT_TYPES))
@pytest.mark.parametrize(
    ("message", "words"),
    [
        (GreetingV1(id=ID, text="hello"), ("hello", "world")),
        (GreetingV2(id=ID, text="hello", to_whom="you"), ("hello", "you")),
        (GreetingV3(id=ID, words=("good", "day")), ("good", "day")),
    ],
)
def test_every_version_reads_as_the_current_one(message, words, content_type):
    headers, payload = written(message, content_type)

    assert GREETING.decode(headers, payload) == GreetingV3(id=ID, words=words)
    assert GREETING.decode_stored(payload) == GreetingV3(id=ID, words=words)


def test_the_current_version_is_what_is_written():
    headers, payload = GREETING.encode(GreetingV3(id=ID, words=("hi",)), codecs.JSON)

    assert headers == {
        "X-CONTENT-TYPE": "application/json",
        "X-MESSAGE-TYPE": "Greeting",
        "X-MESSAGE-VERSION": "3",
        "Nats-Msg-Id": str(ID),
    }
    assert payload == b'{"v3":{"id":"%s","words":["hi"]}}' % str(ID).encode()


def test_an_older_build_names_the_newer_version():
    headers, payload = GREETING.encode(GreetingV3(id=ID, words=()))

    with pytest.raises(NewerVersion, match="Greeting version 3; this build reads up to 2"):
        OLD.decode(headers, payload)
    with pytest.raises(NewerVersion, match="Greeting: the body is of version 3"):
        OLD.decode_stored(payload)


def test_a_field_of_a_later_version_is_unknown_to_the_earlier():
    headers, _ = written(GreetingV1(id=ID, text=""))
    payload = codecs.dumps(codecs.CBOR, {"v1": {"id": str(ID), "text": "", "toWhom": "me"}})

    with pytest.raises(MalformedMessage, match="GreetingV1: toWhom: Extra inputs"):
        GREETING.decode(headers, payload)


@pytest.mark.parametrize(
    "shapes", [(GreetingV2,), (GreetingV1, GreetingV3), (GreetingV2, GreetingV1), (GreetingV1,) * 2]
)
def test_versions_run_without_a_gap(shapes):
    with pytest.raises(TypeError, match="without a gap"):
        MessageType("Greeting", *shapes[:-1], current=shapes[-1])


def test_the_newest_version_does_not_upgrade():
    with pytest.raises(NotImplementedError, match="GreetingV3"):
        GreetingV3(id=ID, words=()).upgrade()


def test_an_enumeration_and_a_tuple_are_read_from_their_json():
    read = GreetingV3.from_wire({"id": str(ID), "words": ["a"], "colour": "red"})

    assert (read.words, read.colour) == (("a",), Colour.RED)
    assert read.to_wire() == {"id": str(ID), "words": ["a"], "colour": "red"}


@pytest.mark.parametrize(
    "fields", [{"words": "a"}, {"words": {"a": 1}}, {"words": [1]}, {"colour": "blue"}], ids=str
)
def test_an_enumeration_and_a_tuple_are_read_from_nothing_else(fields):
    with pytest.raises(ValidationError):
        GreetingV3.from_wire({"id": str(ID), "words": [], **fields})


class Every(WireModel):
    number: int = 0
    ratio: float = 0.0
    yes: bool = False
    some_text: str = ""


@pytest.mark.parametrize(
    "fields",
    [
        {"number": "1"},
        {"number": 1.0},
        {"number": True},
        {"ratio": "1.0"},
        {"ratio": True},
        {"yes": 1},
        {"yes": "true"},
        {"someText": 1},
        {"someText": ["a"]},
    ],
    ids=str,
)
def test_nothing_is_taken_for_what_it_is_not(fields):
    with pytest.raises(ValidationError):
        Every.from_wire(fields)


def test_on_the_wire_a_field_has_its_name_there_and_no_other():
    assert Every.from_wire({"someText": "a"}) == Every(some_text="a")
    with pytest.raises(ValidationError, match="Extra inputs"):
        Every.from_wire({"some_text": "a"})


def test_a_message_does_not_change():
    with pytest.raises(ValidationError, match="frozen"):
        GreetingV1(id=ID, text="a").text = "b"


def test_data_of_a_message_is_plain_from_the_start():
    with pytest.raises(ValidationError, match="nan is not JSON; write null or text"):
        GreetingV3(id=ID, words=(), extra={"a": [float("nan")]})


@pytest.mark.parametrize(
    "content_type",
    [
        "application/json; charset=utf-8",
        "Application/JSON",
        'APPLICATION/json;Charset="UTF-8"; profile="a;charset=latin-1"',
        "application/json;version=2",
        " application/json ",
    ],
)
@pytest.mark.parametrize("spelled", [str, str.lower, str.title, str.upper])
def test_headers_are_read_in_any_case_and_media_types_with_parameters(content_type, spelled):
    message = GreetingV3(id=ID, words=("hello",))
    headers, payload = GREETING.encode(message, codecs.JSON)
    headers["X-CONTENT-TYPE"] = content_type

    assert GREETING.decode({spelled(name): text for name, text in headers.items()}, payload) == (
        message
    )


@pytest.mark.parametrize(
    ("content_type", "why"),
    [
        ("application/json; charset=latin-1", "messages are in UTF-8"),
        ("application/cbor; charset=utf-16", "messages are in UTF-8"),
        ("text/json", "this build reads application/cbor, application/json"),
        ("json", "this build reads"),
        ("application/json, application/cbor", "this build reads"),
    ],
)
def test_another_media_type_or_charset_is_refused_with_words(content_type, why):
    headers, payload = GREETING.encode(GreetingV3(id=ID, words=()), codecs.JSON)

    with pytest.raises(UnsupportedMessage, match=why):
        GREETING.decode(headers | {"X-CONTENT-TYPE": content_type}, payload)


@given(st.text(st.sampled_from("aAé;=\"'*%0 /,()<>\\\n\ud800"), max_size=30))
def test_any_text_is_a_content_type_or_refused(text):
    for content_type in (text, f"application/json;{text}", f"application/json;charset{text}"):
        assert codecs.content_type_or_default(content_type) in codecs.CONTENT_TYPES


def test_a_text_that_is_none_is_not_written():
    with pytest.raises(MalformedMessage, match="cannot be written as application/cbor"):
        GREETING.encode(GreetingV3(id=ID, words=("\ud800",)))


def test_a_mistake_is_described_without_the_data():
    with pytest.raises(ValidationError) as caught:
        Every.from_wire({"number": "secret", "ratio": "secret", "yes": "secret"})

    assert first_error(caught.value) == "number: Input should be a valid integer (and 2 more)"
