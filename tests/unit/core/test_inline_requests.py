"""A request that holds its batch is encoded as its class would be."""

from typing import Any

import pytest

from rebaser_core.codecs import CBOR, JSON
from rebaser_core.errors import MalformedMessage
from rebaser_core.ids import ChangeSet, ChangeSetId
from rebaser_core.messages import (
    EnqueueUpdatesRequest,
    EnqueueUpdatesRequestV1,
    Inline,
    InlineBatch,
    encode_inline_request,
)
from rebaser_core.updates import MANY
from tests.wire.samples import REQUEST, WHERE

ORIGIN = ChangeSetId.from_int(7)


def set_values(count: int) -> Any:
    value_id = str(ChangeSetId.from_int(1))
    updates: Any = [{"setValue": {"valueId": value_id, "value": n}} for n in range(count)]
    return InlineBatch(updates=updates).updates


@pytest.mark.parametrize("content_type", [CBOR, JSON])
@pytest.mark.parametrize("origin", [None, ORIGIN])
@pytest.mark.parametrize("count", [1, MANY])
def test_the_bytes_are_those_of_the_class(
    content_type: str, origin: ChangeSetId | None, count: int
) -> None:
    """So are the headers; whether the updates are objects or, as many are, plain data."""
    updates = set_values(count)
    request = EnqueueUpdatesRequestV1(
        id=REQUEST,
        **WHERE,
        updates_address=Inline(inline=InlineBatch(updates=updates)),
        from_change_set_id=origin,
    )

    encoded = encode_inline_request(REQUEST, ChangeSet(**WHERE), origin, updates, content_type)

    assert encoded == EnqueueUpdatesRequest.encode(request, content_type)


def test_an_id_that_is_none_is_not_encoded() -> None:
    """A request with it would be one that no Rebaser reads."""
    change_set: Any = ChangeSet(**WHERE)._replace(change_set_id="shop")

    with pytest.raises(MalformedMessage, match="shop"):
        encode_inline_request(REQUEST, change_set, None, set_values(1), CBOR)
