"""What is written is what is read, whatever a message says."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rebaser_core import codecs
from rebaser_core.codecs import json_equal
from rebaser_core.messages import EnqueueUpdatesResponse
from rebaser_core.versioning import ContentInfo
from tests.wire.samples import TYPES
from tests.wire.strategies import (
    content_types,
    json_values,
    messages,
    nested,
    old_responses,
    unhurried,
)

EVERY_TYPE = pytest.mark.parametrize("name", TYPES)


@EVERY_TYPE
@unhurried
@given(data=st.data(), content_type=content_types)
def test_a_message_reads_as_it_was_written(name, data, content_type):
    """Also at rest, without headers: it tells its encoding."""
    message = data.draw(messages[name])

    headers, payload = TYPES[name].encode(message, content_type)
    read = TYPES[name].decode(headers, payload)

    assert read == TYPES[name].decode_stored(payload) == message
    assert TYPES[name].encode(read, content_type) == (headers, payload)  # 1, 1.0, true, -0.0


@unhurried
@given(old=old_responses, content_type=content_types)
def test_an_old_response_keeps_what_it_said(old, content_type):
    headers = ContentInfo(content_type, "EnqueueUpdatesResponse", 1).headers()
    payload = codecs.dumps(content_type, {"v1": old.to_wire()})

    read = EnqueueUpdatesResponse.decode(headers, payload).to_wire()

    if "success" in read["status"]:
        assert read["status"]["success"].pop("corrections") == []
    assert read == old.to_wire()


@unhurried
@given(value=json_values, content_type=content_types)
def test_any_json_survives_the_codecs(value, content_type):
    assert json_equal(codecs.loads(content_type, codecs.dumps(content_type, value)), value)


@unhurried
@given(value=nested(codecs.MAX_DEPTH), content_type=content_types)
def test_the_deepest_value_fits_into_every_message(value, content_type):
    """What a request may carry, the commit log and the reply must be able to repeat."""
    batch = {"inline": {"updates": [{"setValue": {"valueId": "0" * 26, "value": value}}]}}
    response = {"v2": {"status": {"success": {"updatesPerformed": batch}}}}

    payload = codecs.dumps(content_type, response)

    assert json_equal(codecs.loads(content_type, payload), response)
