"""What was released stays as it was: the bytes of every version, and how they read today.

A file under `golden/` is written once and never edited. After adding a message or a version, put
its JSON there in any layout: `WRITE_MISSING_GOLDEN=1 pytest tests/wire/test_golden.py` gives it
the layout of the wire and writes the CBOR beside it, only where that is not there yet.
"""

import importlib
import os
import pkgutil

import pytest

import rebaser_core
from rebaser_core import codecs
from rebaser_core.codecs import json_equal
from rebaser_core.messages import EnqueueUpdatesResponseV1
from rebaser_core.versioning import MessageType
from tests.wire.samples import ENDINGS, FAILED, GOLDEN, INLINE, SAMPLES, TYPES, response, success

BOTH = pytest.mark.parametrize("content_type", sorted(ENDINGS), ids=ENDINGS.get)
EVERY = pytest.mark.parametrize("sample", SAMPLES, ids=str)
REWRITTEN = {
    "EnqueueUpdatesResponse-v1": response(success(INLINE)),
    "EnqueueUpdatesResponse-v1-error": response(FAILED),
}
"""In another version today: a server answers in version 2 or 3."""


@pytest.fixture(scope="module", autouse=True)
def _missing_files():
    if os.environ.get("WRITE_MISSING_GOLDEN"):
        for sample in SAMPLES:
            if not sample.path(codecs.CBOR).exists():
                message = sample.read
                for content_type in ENDINGS:
                    _, payload = TYPES[sample.type_name].encode(message, content_type)
                    sample.path(content_type).write_bytes(payload)


@BOTH
@EVERY
def test_reads_as_the_current_message(sample, content_type):
    payload = sample.payload(content_type)

    message = TYPES[sample.type_name].decode(sample.headers(content_type), payload)

    assert isinstance(message, TYPES[sample.type_name].current)
    assert message == sample.read
    assert TYPES[sample.type_name].decode_stored(payload) == sample.read


@BOTH
@pytest.mark.parametrize("sample", [s for s in SAMPLES if str(s) not in REWRITTEN], ids=str)
def test_messages_are_written_in_the_oldest_sufficient_version(sample, content_type):
    """With the bytes of its release: a difference is an incompatibility; make it a new version."""
    headers, payload = TYPES[sample.type_name].encode(sample.read, content_type)

    assert payload == sample.payload(content_type)
    assert headers == {**sample.headers(content_type), "Nats-Msg-Id": str(sample.read.id)}


@BOTH
@pytest.mark.parametrize("sample", [s for s in SAMPLES if str(s) in REWRITTEN], ids=str)
def test_an_old_response_reads_as_todays_and_keeps_its_bytes(sample, content_type):
    payload = sample.payload(content_type)

    old = EnqueueUpdatesResponseV1.from_wire(codecs.loads(content_type, payload)["v1"])

    assert codecs.dumps(content_type, {"v1": old.to_wire()}) == payload
    assert sample.read == old.upgrade().upgrade() == REWRITTEN[str(sample)]


def test_both_encodings_say_the_same():
    for sample in SAMPLES:
        cbor, json = (sample.payload(content_type) for content_type in (codecs.CBOR, codecs.JSON))

        assert json_equal(codecs.loads(codecs.CBOR, cbor), codecs.loads(codecs.JSON, json))


def test_every_version_of_every_message_has_its_bytes():
    covered = {(sample.type_name, sample.version) for sample in SAMPLES}

    assert covered == {
        (kind.name, version)
        for kind in TYPES.values()
        for version in range(1, kind.current.VERSION + 1)
    }


def test_every_message_is_known_to_these_tests():
    modules = [
        importlib.import_module(module.name)
        for module in pkgutil.walk_packages(rebaser_core.__path__, "rebaser_core.")
    ]

    made = [m for module in modules for m in vars(module).values() if isinstance(m, MessageType)]

    assert {message.name for message in made} == set(TYPES)


def test_no_file_is_left_without_its_sample():
    files = {path for path in GOLDEN.rglob("*") if path.is_file()}

    assert files == {sample.path(content_type) for sample in SAMPLES for content_type in ENDINGS}
