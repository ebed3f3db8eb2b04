"""The reply subject of a delivery, which says all about it (ADR-15, JSAck)."""

from typing import Final, NamedTuple

from rebaser_core.jetstream.errors import NotJetStream

PREFIX: Final = "$JS.ACK."
_V1_TOKENS: Final = 9
_V2_TOKENS: Final = 11  # or more: tokens may be added at the end
_NO_DOMAIN: Final = "_"
_DIGITS: Final = 5 * 20


class AckSubject(NamedTuple):
    """`domain` is empty if there is none, and, like `account`, in version 1."""

    domain: str
    account: str
    stream: str
    consumer: str
    delivered: int
    stream_sequence: int
    consumer_sequence: int
    timestamp: int
    """Nanoseconds since 1970."""
    pending: int

    @classmethod
    def parse(cls, subject: str) -> "AckSubject":
        """Read version 1 (9 tokens) or 2 (11 tokens and more).

        Raises:
            NotJetStream: anything else.
        """
        tokens = subject.split(".")
        if len(tokens) == _V1_TOKENS:
            domain = account = ""
            fields = tokens[2:]
        elif len(tokens) >= _V2_TOKENS:
            domain, account = tokens[2:4]
            fields = tokens[4:11]
        else:
            raise NotJetStream(f"not an ack subject: {subject!r}")
        stream, consumer, *numbers = fields
        try:
            named = stream and consumer and subject.startswith(PREFIX)
            if not (named and _digits("".join(numbers))):
                raise ValueError
            delivered, stream_sequence, consumer_sequence, timestamp, pending = map(int, numbers)
        except ValueError:
            raise NotJetStream(f"not an ack subject: {subject!r}") from None
        return cls(
            "" if domain == _NO_DOMAIN else domain,
            account,
            stream,
            consumer,
            delivered,
            stream_sequence,
            consumer_sequence,
            timestamp,
            pending,
        )


def _digits(text: str) -> bool:
    return (
        text.isascii() and text.isdigit() and len(text) <= _DIGITS
    )  # `int` takes signs, spaces and underscores, too
