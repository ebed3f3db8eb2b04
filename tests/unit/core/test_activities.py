"""What watchers are told."""

import pytest
from pydantic import ValidationError

from rebaser_core.activities import Activity, ActivityKind, ActivityV1, encode_activity
from rebaser_core.errors import MalformedMessage
from rebaser_core.ids import ChangeSet
from tests.wire.samples import REQUEST, WHERE


def test_details_are_optional():
    activity = ActivityV1(id=REQUEST, **WHERE, kind=ActivityKind.QUIET)

    assert activity.to_wire()["details"] == {}
    assert "requestId" not in activity.to_wire()


def test_an_unknown_kind_is_malformed_and_the_error_lists_the_known_ones():
    headers, payload = Activity.encode(ActivityV1(id=REQUEST, **WHERE, kind=ActivityKind.QUIET))

    with pytest.raises(MalformedMessage, match="kind: Input should be 'taken', 'requestApplied'"):
        Activity.decode(headers, payload.replace(b"quiet", b"quick"))


def test_details_are_plain_data():
    with pytest.raises(ValidationError, match="object is not JSON"):
        ActivityV1(id=REQUEST, **WHERE, kind=ActivityKind.TAKEN, details={"a": object()})


def test_an_encoded_activity_equals_that_of_its_class():
    details = {"commit": 7, "outcome": "applied"}
    change_set = ChangeSet(**WHERE)

    headers, payload = encode_activity(change_set, ActivityKind.REQUEST_APPLIED, REQUEST, details)

    said = Activity.decode(headers, payload)
    kind = ActivityKind.REQUEST_APPLIED
    assert said == ActivityV1(id=said.id, **WHERE, kind=kind, request_id=REQUEST, details=details)
    assert Activity.encode(said)[0] == headers
    assert Activity.decode(*encode_activity(change_set, kind, None, {})).request_id is None
