"""What was released stays as it was: the bytes of every version, and how they read today.

A file under `golden/` is written once and never edited. After adding a message or a
version, `WRITE_MISSING_GOLDEN=1 pytest tests/wire/test_golden.py` writes the files that
are not there yet, and only those.
"""

import importlib
import os
import pkgutil

import pytest

import rebaser_core
from rebaser_core import codecs
from rebaser_core.codecs import json_equal
from rebaser_core.versioning import MessageType
from tests.wire.samples import ENDINGS, GOLDEN, SAMPLES, TYPES

BOTH = pytest.mark.parametrize("content_type", sorted(ENDINGS), ids=ENDINGS.get)
EVERY = pytest.mark.parametrize("sample", SAMPLES, ids=str)
REWRITTEN = {"EnqueueUpdatesResponse-v1", "EnqueueUpdatesResponse-v1-error"}
"""In another version today: a server answers in version 2."""


@pytest.fixture(scope="module", autouse=True)
def _missing_files():
    if os.environ.get("WRITE_MISSING_GOLDEN"):
        for sample in SAMPLES:
            for content_type in ENDINGS:
                path = sample.path(content_type)
                path.parent.mkdir(parents=True, exist_ok=True)
                if not path.exists():
                    path.write_bytes(sample.payload(content_type))


@BOTH
@EVERY
def test_bytes_are_as_released(sample, content_type):
    """A difference is an incompatibility; make it a new version."""
    assert sample.payload(content_type) == sample.path(content_type).read_bytes()


@BOTH
@EVERY
def test_reads_as_the_current_message(sample, content_type):
    payload = sample.path(content_type).read_bytes()

    message = TYPES[sample.type_name].decode(sample.headers(content_type), payload)

    assert message == sample.read


@BOTH
@EVERY
def test_stored_bytes_are_read_without_headers(sample, content_type):
    payload = sample.path(content_type).read_bytes()

    assert TYPES[sample.type_name].decode_stored(payload) == sample.read


@BOTH
@pytest.mark.parametrize("sample", [s for s in SAMPLES if str(s) not in REWRITTEN], ids=str)
def test_messages_are_written_in_the_oldest_sufficient_version(sample, content_type):
    headers, payload = TYPES[sample.type_name].encode(sample.read, content_type)

    assert payload == sample.path(content_type).read_bytes()
    assert headers == {**sample.headers(content_type), "Nats-Msg-Id": str(sample.written.id)}


def test_both_encodings_say_the_same():
    for sample in SAMPLES:
        cbor, json = (sample.path(c).read_bytes() for c in (codecs.CBOR, codecs.JSON))

        assert json_equal(codecs.loads(codecs.CBOR, cbor), codecs.loads(codecs.JSON, json))


def test_every_version_of_every_message_has_its_bytes():
    covered = {(sample.type_name, sample.written.VERSION) for sample in SAMPLES}

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
