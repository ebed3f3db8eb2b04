"""Small batches travel inside their request, and nothing is stored for them."""

import asyncio

import pytest
from nats.aio.client import Client

from rebaser_client.requests import store_batch
from rebaser_core import codecs
from rebaser_core.errors import TooLarge
from rebaser_core.ids import RequestId
from rebaser_core.jetstream import JetStream, ObjectStore
from rebaser_core.messages import Inline, InlineBatch, UpdatesBatch, UpdatesBatchV1
from rebaser_core.requests import INLINE_BYTES, INLINE_UPDATES
from rebaser_core.updates import RemoveValue, SetValue

ID = RequestId.from_int(7)
ONE = "0" * 26
EITHER = pytest.mark.parametrize("content_type", sorted(codecs.CONTENT_TYPES))


@pytest.fixture
def unreachable():
    """A bucket that nobody can write to: what is placed in spite of it is inline."""
    return ObjectStore(JetStream(Client()), "B")


def of_size(size, content_type):
    """A batch of one update, encoded in exactly `size` bytes."""
    updates = [SetValue(value_id=ONE, value="x" * (size - 200))]
    taken = len(UpdatesBatch.encode(UpdatesBatchV1(id=ID, updates=updates), content_type)[1])
    return [SetValue(value_id=ONE, value="x" * (2 * size - 200 - taken))]


@EITHER
@pytest.mark.parametrize("count", [0, 1, INLINE_UPDATES])
async def test_a_small_batch_is_inline(unreachable, count, content_type):
    updates = [RemoveValue(value_id=ONE)] * count

    address = await store_batch(unreachable, ID, updates, content_type)

    assert address == Inline(inline=InlineBatch(updates=updates))


@EITHER
async def test_a_batch_is_inline_up_to_the_last_byte(unreachable, content_type):
    updates = of_size(INLINE_BYTES, content_type)

    assert isinstance(await store_batch(unreachable, ID, updates, content_type), Inline)


async def test_a_batch_beyond_the_limit_is_refused_before_sending(unreachable):
    updates = of_size(INLINE_BYTES + 1, codecs.CBOR)

    with pytest.raises(TooLarge, match=f"{INLINE_BYTES + 1} bytes; at most {INLINE_BYTES} are"):
        async with asyncio.timeout(10):
            await store_batch(unreachable, ID, updates, codecs.CBOR, INLINE_BYTES)


@pytest.mark.parametrize(
    "updates",
    [of_size(INLINE_BYTES + 1, codecs.CBOR), [RemoveValue(value_id=ONE)] * (INLINE_UPDATES + 1)],
    ids=["one byte more", "one update more, however short"],
)
async def test_a_larger_batch_is_not_inline(unreachable, updates):
    with pytest.raises(TimeoutError):  # it is being stored, for want of a server in vain
        async with asyncio.timeout(0.2):
            await store_batch(unreachable, ID, updates, codecs.CBOR)
