"""`JetStream`: the API and the handles of its streams, as one object."""

from rebaser_core.jetstream.api import JetStreamApi
from rebaser_core.jetstream.consumers.handles import Stream


class JetStream(JetStreamApi):
    """A JetStream: requests to its API, and `stream` for its streams and consumers."""

    def stream(self, name: str) -> Stream:
        """Return a handle; makes no request."""
        return Stream(self, name)
