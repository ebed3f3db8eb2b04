"""`JetStream`: the API and the handles of its streams, as one object."""

from typing import TYPE_CHECKING

from rebaser_core.jetstream.api import JetStreamApi

if TYPE_CHECKING:
    from rebaser_core.jetstream.consumers.handles import Stream


class JetStream(JetStreamApi):
    """A JetStream: requests to its API, and `stream` for its streams and consumers."""

    def stream(self, name: str) -> "Stream":
        """Return a handle; makes no request."""
        from rebaser_core.jetstream.consumers.handles import (
            Stream,
        )  # slow, and not needed to publish

        return Stream(self, name)
