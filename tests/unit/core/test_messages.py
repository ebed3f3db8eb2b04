"""What requests and responses say, beyond their bytes (`tests/wire`)."""

import pytest
from pydantic import ValidationError

from rebaser_core.messages import (
    Correction,
    ObjectRef,
    StoreRef,
)
from tests.wire.samples import request


@pytest.mark.parametrize("key", ["a", "A-z_0.9", "x" * 200])
def test_a_key_of_the_store_is_a_plain_name(key):
    assert request(StoreRef(store=key)).to_wire()["updatesAddress"] == {"store": key}


@pytest.mark.parametrize("key", ["", "a/b", "a b", "é", "x" * 201, "a\n"])
def test_a_key_that_could_be_a_path_is_refused(key):
    with pytest.raises(ValidationError):
        StoreRef(store=key)


@pytest.mark.parametrize("digest", ["", "a" * 63, "a" * 65, "A" * 64, "g" * 64])
def test_an_object_is_named_by_64_hex_digits(digest):
    with pytest.raises(ValidationError):
        ObjectRef(object=digest)


def test_a_correction_points_into_the_batch():
    with pytest.raises(ValidationError):
        Correction(index=-1, code="cycle", detail="")
