"""The corrections of a request that were too many for its response."""

import asyncio
from collections.abc import Sequence

from rebaser_client.errors import ReadRefused
from rebaser_core.jetstream import NotFound, ObjectDamaged, ObjectStore
from rebaser_core.messages import Correction, Corrections, omitted


async def read_all(bucket: ObjectStore, corrections: Sequence[Correction]) -> Sequence[Correction]:
    """Return all corrections; those given may be the first of them and an entry for the others.

    Raises:
        ReadRefused: the others were removed with their commit.
    """
    more = omitted(corrections)
    if more is None:
        return corrections
    try:
        payload = await bucket.get(more.object)
    except (NotFound, ObjectDamaged) as error:
        raise ReadRefused(f"corrections in object {more.object}: {error}") from error
    return (await asyncio.to_thread(Corrections.decode_stored, payload)).corrections
