"""What would take too much memory for its size is refused before it is decoded."""

import subprocess
import sys

import pytest

from rebaser_core import codecs
from rebaser_core.codecs import FACTOR, FREE, SMALL, require_affordable
from rebaser_core.errors import CostlyMessage
from rebaser_core.messages import EnqueueUpdatesRequest, UpdatesBatch
from rebaser_core.versioning import CONTENT_TYPE, MESSAGE_TYPE, MESSAGE_VERSION

MANY = 3_000_000  # octets


def cbor(item):
    count = MANY // len(item)
    return b"\x9a" + count.to_bytes(4, "big") + item * count


def json_of(item):
    return b"[" + (item + b",") * (MANY // (len(item) + 1)) + b"1]"


DENSE = {
    codecs.CBOR: [
        b"\x80", b"\xa0", b"\x81\x00", b"\x9f\xff", b"\xbf\xff", b"\x81" * 78 + b"\x80",
        b"\xa1\x60\x00", b"\xa1\x61a" * 78 + b"\xa0", b"\x62ab", b"\x62\xd0\xb6", b"\x33",
    ],
    codecs.JSON: [
        b"[]", b"{}", b"[0]", b'{"":0}', b"[" * 79 + b"]" * 79, b'{"":' * 78 + b"1" + b"}" * 78,
    ],
}  # fmt: skip
PAYLOADS = [
    (kind, cbor(item) if kind == codecs.CBOR else json_of(item))
    for kind, items in DENSE.items()
    for item in items
]
CHEAP = [
    (codecs.CBOR, cbor(b"\xfb\x3f\xf1" + b"\x99" * 6)),
    (codecs.CBOR, cbor(b"\x19\x03\xe8")),
    (codecs.CBOR, cbor(b"\x82\x19\x03\xe8\x19\x07\xd0")),
    (codecs.CBOR, b"\x7a" + MANY.to_bytes(4, "big") + b"\x80" * MANY),
    (codecs.CBOR, codecs.dumps(codecs.CBOR, ["Größe 世界 " * 30] * 10_000)),
    (codecs.JSON, codecs.dumps(codecs.JSON, "[]" * MANY)),
    (codecs.JSON, codecs.dumps(codecs.JSON, ['[{}],",\\"' * 30] * 10_000)),
    (codecs.JSON, json_of(b"[1000,2000]")),
    (codecs.JSON, json_of(b"1.5")),
]
UPDATES = [
    {"removeValue": {"valueId": "01K9QF5B8H2Y6N4ZQ0T7W3E1A9"}},
    {"setValue": {"valueId": "01K9QF5B8H2Y6N4ZQ0T7W3E1A9", "value": -1000}},
    {"putValue": {"valueId": "01K9QF5B8H2Y6N4ZQ0T7W3E1A9", "name": "a", "value": [1, [2, {}]]}},
    {"setInputs": {"valueId": "01K9QF5B8H2Y6N4ZQ0T7W3E1A9", "inputs": {"a": ["01K9" * 6]}}},
]


def size(parameter):
    """A name for a payload: the whole of it would be more than a process can be given."""
    return f"{len(parameter)} octets" if isinstance(parameter, bytes) else str(parameter)


@pytest.mark.parametrize(("content_type", "payload"), PAYLOADS, ids=size)
def test_dense_payloads_are_refused(content_type, payload):
    with pytest.raises(CostlyMessage, match="smaller batches"):
        require_affordable(content_type, payload)


@pytest.mark.parametrize(("content_type", "payload"), [PAYLOADS[0], PAYLOADS[-1]], ids=size)
def test_what_clients_send_is_looked_at_before_it_is_decoded(content_type, payload):
    """A request, and a batch that lies beside it."""
    headers = {CONTENT_TYPE: content_type, MESSAGE_VERSION: "1"}

    with pytest.raises(CostlyMessage):
        EnqueueUpdatesRequest.decode({**headers, MESSAGE_TYPE: EnqueueUpdatesRequest.name}, payload)
    with pytest.raises(CostlyMessage):
        UpdatesBatch.decode_stored(payload, from_client=True)


@pytest.mark.parametrize(("content_type", "payload"), CHEAP, ids=size)
def test_plain_payloads_are_accepted(content_type, payload):
    assert len(payload) > SMALL
    require_affordable(content_type, payload)


@pytest.mark.parametrize("content_type", sorted(codecs.CONTENT_TYPES))
@pytest.mark.parametrize("update", UPDATES, ids=str)
def test_large_batches_of_each_update_are_accepted(content_type, update):
    payload = codecs.dumps(content_type, {"v1": {"updates": [update] * 75_000}})

    require_affordable(content_type, payload)


@pytest.mark.parametrize(
    "payload", [b"\x9b" + b"\xff" * 8, b"\x7b" + b"\xff" * 8, b"\x78", b"\x1b"]
)
def test_truncated_payloads_are_left_to_the_decoder(payload):
    padding = b"\x9a\x00\x20\x00\x00" + b"\x00" * (SMALL + 1)

    require_affordable(codecs.CBOR, padding + payload)
    require_affordable(codecs.JSON, b'["' + b"\\" * (SMALL + 2) + payload)


MEASURE = """
import resource, sys
from rebaser_core import codecs
from rebaser_core.codecs import require_affordable
kind, payload = sys.argv[1], sys.stdin.buffer.read()
codecs.loads(codecs.JSON, b"[1]")
def most():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) * 1024
before = most()
try:
    require_affordable(kind, payload)
    codecs.loads(kind, payload)
except codecs.MalformedMessage:
    pass
print(most() - before)
"""


@pytest.mark.parametrize(
    ("content_type", "payload"),
    [PAYLOADS[0], PAYLOADS[-1], CHEAP[1], (codecs.CBOR, cbor(b"\x38d"))],
    ids=size,
)
def test_memory_is_a_multiple_of_the_size(content_type, payload):
    """Text that is not ASCII may take a little more than it is charged with."""
    run = subprocess.run(
        [sys.executable, "-c", MEASURE, content_type],
        input=payload,
        capture_output=True,
        check=True,
    )

    assert int(run.stdout) < max(FREE, 32 / 24 * FACTOR * len(payload))
