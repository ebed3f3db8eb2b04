"""Bytes ⇄ plain data."""

import math
import subprocess
import sys

import pytest

from rebaser_core import codecs
from rebaser_core.errors import MalformedMessage

BOTH = pytest.mark.parametrize("content_type", sorted(codecs.CONTENT_TYPES))


def nested(depth, leaf):
    for _ in range(depth):
        leaf = [leaf]
    return leaf


def test_json_is_compact_utf8():
    assert codecs.dumps(codecs.JSON, {"a": ["é", 1.0]}) == '{"a":["é",1.0]}'.encode()


@pytest.mark.parametrize("leaf", [[], {}, [1], {"a": 1}])
def test_depth_counts_arrays_and_objects_alone(leaf):
    codecs.validate_json(nested(codecs.MAX_DEPTH - 1, leaf))

    with pytest.raises(MalformedMessage, match="nested deeper than 64"):
        codecs.validate_json(nested(codecs.MAX_DEPTH, leaf))


@BOTH
def test_a_message_has_room_for_the_deepest_value(content_type):
    """A commit and a reply wrap a value deeper than the request that brought it."""
    wrapped = nested(codecs.MAX_MESSAGE_DEPTH, 1)

    assert codecs.loads(content_type, codecs.dumps(content_type, wrapped)) == wrapped
    with pytest.raises(MalformedMessage, match="80"):
        codecs.loads(content_type, codecs.dumps(content_type, [wrapped]))


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (math.nan, "nan is not JSON"),
        ([math.inf], "inf is not JSON"),
        (codecs.INT_MAX + 1, "beyond 64 bits"),
        (codecs.INT_MIN - 1, "beyond 64 bits"),
        (b"x", "bytes is not JSON"),
        ((1, 2), "tuple is not JSON"),
        ({1, 2}, "set is not JSON"),
        ({1: 2}, "key is not text"),
        pytest.param({"a": object()}, "object is not JSON", id="object"),
        ("\ud800", "half of a surrogate pair"),
        ({"\udc00": 1}, "half of a surrogate pair"),
    ],
    ids=repr,
)
def test_data_beyond_json_is_not_plain(data, says):
    with pytest.raises(MalformedMessage, match=says):
        codecs.validate_json(data)


def test_a_value_that_contains_itself_is_not_plain():
    data = []
    data.append(data)

    with pytest.raises(MalformedMessage, match="nested deeper"):
        codecs.validate_json(data)


@BOTH
@pytest.mark.parametrize(
    "data", ["\ud800", pytest.param(object(), id="object"), {"a": {"\udc00": 1}}], ids=ascii
)
def test_data_that_cannot_be_encoded_is_a_malformed_message(data, content_type):
    with pytest.raises(MalformedMessage, match="cannot be written"):
        codecs.dumps(content_type, data)


STARVED = """
import resource, sys
from rebaser_core import codecs

payload = codecs.dumps(sys.argv[1], ["x" * 200 for _ in range(100_000)])
pages = int(open("/proc/self/statm").read().split()[0])
limit = pages * resource.getpagesize() + (8 << 20)
resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
try:
    codecs.loads(sys.argv[1], payload)
except Exception as error:
    kind = type(error).__name__
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    print(kind)
"""


@BOTH
def test_a_message_is_not_to_blame_for_want_of_memory(content_type):
    """A request would be buried for it."""
    done = subprocess.run(
        [sys.executable, "-c", STARVED, content_type], capture_output=True, text=True, check=True
    )

    assert done.stdout == "MemoryError\n"


@pytest.mark.parametrize("head", [b"\x5b", b"\x7b", b"\x9b", b"\xbb"])
@pytest.mark.parametrize("length", [1 << 30, 1 << 40, (1 << 63) - 1, (1 << 64) - 1])
def test_a_message_that_claims_to_be_large_lacks_no_memory(head, length):
    """Else it would be tried again."""
    with pytest.raises(MalformedMessage):
        codecs.loads(codecs.CBOR, head + length.to_bytes(8, "big") + b"abc")
