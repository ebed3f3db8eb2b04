"""What the JetStream API replies to a request."""

from typing import Any

import orjson

from rebaser_core.jetstream.errors import ApiError, NotJetStream


def decode_reply(answer: bytes) -> dict[str, Any]:
    """Return what the API replied; a field that is missed raises `NotJetStream`.

    Raises:
        ApiError: the server refused.
        NotJetStream: another program replied.
    """
    try:
        reply = orjson.loads(answer)
    except ValueError:
        reply = None
    if not isinstance(reply, dict):
        raise NotJetStream(f"not an answer of JetStream: {answer[:100]!r}")
    if error := reply.get("error"):
        raise ApiError.of(error if isinstance(error, dict) else {"description": error})
    return _Reply(reply)


class _Reply(dict[str, Any]):
    """A JetStream reply: a missing field raises `NotJetStream`, since another program replied."""

    def __missing__(self, key: str) -> Any:
        raise NotJetStream(f"no {key} in an answer: {str(dict(self))[:100]}")
