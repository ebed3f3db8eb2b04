"""Messages in versions: judged by their headers alone, then read in any version and upgraded.

A new version is one class with the next `VERSION` and one `upgrade` on the class before it. The
body repeats the version as its one key, `{"v1": {…}}`; a body that disagrees with its headers is
malformed.

`WireModel` is the base of all messages: strict, camelCase on the wire, with readable errors.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Annotated, Any, ClassVar, Final, Generic, NamedTuple, Self, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

from rebaser_core import codecs
from rebaser_core.codecs import require_affordable
from rebaser_core.errors import MalformedMessage, NewerVersion, UnsupportedMessage
from rebaser_core.ids import CANONICAL, RequestId


def _validated_json(value: Any) -> Any:
    try:
        codecs.validate_json(value)
    except MalformedMessage as error:
        raise PydanticCustomError("plain", "{why}", {"why": str(error)}) from None
    return value


JsonValue = Annotated[Any, AfterValidator(_validated_json)]
"""JSON nested as deep as a value may be, checked before it is ever written."""

ParseFromJson = Field(strict=False)
"""Option of a field that is not a JSON type, an enumeration or a tuple: it may be made from its
JSON."""


class WireData(ABC):
    """Part of a message that is no model, and knows its plain data."""

    @abstractmethod
    def to_wire(self) -> Any:
        """Return plain data, which the caller does not change."""


class WireModel(BaseModel):
    """Part of a message: fields in camelCase on the wire, no unknown ones, never changed.

    Strict: `"1"`, `1.0` and `true` are no integers.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        alias_generator=to_camel,
        populate_by_name=True,
        strict=True,
        defer_build=True,
    )

    @classmethod
    def from_wire(cls, data: Any) -> Self:
        """Read plain data, which has the names of the wire and no others.

        Raises:
            ValidationError: it is not of this shape.
        """
        read: Self = cls.__pydantic_validator__.validate_python(data, by_alias=True, by_name=False)
        return read  # `model_validate` takes half as long again

    def to_wire(self) -> dict[str, Any]:
        """Return plain data, without fields that are None by default.

        It is written by hand for speed, since most data is in large batches, and shares what is
        plain already.
        """
        said = {}
        values = self.__dict__
        for name, alias, required in _fields(type(self)):
            value = values[name]
            if required or value is not None:
                kind = type(value)
                said[alias] = value if kind in _AS_IT_IS else _writer_of(kind)(value)
        return said


@cache
def _fields(shape: type[WireModel]) -> list[tuple[str, str, bool]]:
    fields = shape.model_fields.items()
    return [(name, info.alias or name, info.is_required()) for name, info in fields]


def _find_writer(kind: type) -> Callable[[Any], Any]:
    """Return the function that makes plain data of values of that class."""
    if issubclass(kind, WireModel | WireData):
        return kind.to_wire
    if issubclass(kind, list | tuple):
        return _items_to_wire
    return str  # an id or an enumeration


_writer_of: Final[Callable[[type], Callable[[Any], Any]]] = cache(_find_writer)


def _items_to_wire(items: Sequence[Any]) -> list[Any]:
    return [item if type(item) in _AS_IT_IS else _writer_of(type(item))(item) for item in items]


_AS_IT_IS: Final = frozenset({str, int, float, bool, type(None), dict})


def first_error(error: ValidationError) -> str:
    """Return where the first mistake is, what it is, and how many more there are. Shows no data."""
    first = error.errors(include_url=False, include_input=False)[0]
    where: list[str] = []
    for part in map(str, first["loc"]):
        if where[-1:] != [part]:  # a tagged part comes twice: as the tag, and as the field
            where.append(part)
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    return f"{'.'.join(where)[:200] or 'the body'}: {_problem_text(first)}{more}"


def _problem_text(problem: Any) -> str:
    if problem.get("ctx", {}).get("pattern") == CANONICAL:
        return "Input should be a ULID in its canonical text, in upper case"
    return str(problem["msg"])


CONTENT_TYPE: Final = "X-CONTENT-TYPE"
MESSAGE_TYPE: Final = "X-MESSAGE-TYPE"
MESSAGE_VERSION: Final = "X-MESSAGE-VERSION"
MESSAGE_ID: Final = "Nats-Msg-Id"
REPLY_INBOX: Final = "X-Reply-Inbox"
AUTHOR: Final = "X-Author"
"""The author, for people who read the log: as the client names it, unchecked."""

APPLY_REQUEST: Final = "X-Apply-Request"
"""Header of a branch's difference on its way to head: the request to apply the branch."""

REQUEST_DIGEST: Final = "X-Request-Digest"
"""Digest of a request. A commit has the digest of the request that it settles. A query for an
outcome has that of the request that it means, since another request may have had the id."""

EDITED: Final = "X-Edited"
"""Time of a change set's last edit, in those of its commits that are no edits."""

CODE: Final = "X-Code"
"""Code that a change set's values were computed with, in its commits, see `read_code`. The last
commit that has it counts."""

_is_version: Final = re.compile("v[1-9][0-9]{0,8}").fullmatch
_DIGITS: Final = 10  # digits of a version; `int` of unbounded text is slow


class Versioned(WireModel):
    """A version of a message. Once released it never changes: a new field is a new version."""

    VERSION: ClassVar[int]
    id: RequestId

    def upgrade(self) -> "Versioned":
        """Return the message one version newer. The newest version has none."""
        raise NotImplementedError(f"{type(self).__name__} does not upgrade")

    def to_oldest_version(self) -> "Versioned":
        """Return the message in the oldest version that can express all of it, which is written."""
        return self


VersionedT = TypeVar("VersionedT", bound=Versioned)


def header(headers: Mapping[str, str], name: str) -> str | None:
    """Return the header with that name, in any case; the name as it is written comes first."""
    value = headers.get(name)
    if value is None:
        wanted = name.lower()
        value = next((text for each, text in headers.items() if each.lower() == wanted), None)
    return value


class ContentInfo(NamedTuple):
    """The headers' description of a payload, before the payload is read."""

    content_type: str
    message_type: str
    message_version: int

    @classmethod
    def from_headers(cls, headers: Mapping[str, str]) -> Self:
        """Read headers; raise `MalformedMessage` if one is missing or makes no sense."""
        content_type, message_type = header(headers, CONTENT_TYPE), header(headers, MESSAGE_TYPE)
        said = header(headers, MESSAGE_VERSION)
        if not (content_type and message_type and said):
            names = (CONTENT_TYPE, MESSAGE_TYPE, MESSAGE_VERSION)
            missing = ", ".join(name for name in names if not header(headers, name))
            raise MalformedMessage(f"headers missing: {missing}")
        version = parse_version(said)
        if not version:
            raise MalformedMessage(f"{MESSAGE_VERSION} is no positive integer: {said[:40]!r}")
        return cls(content_type, message_type, version)

    def headers(self) -> dict[str, str]:
        return {
            CONTENT_TYPE: self.content_type,
            MESSAGE_TYPE: self.message_type,
            MESSAGE_VERSION: str(self.message_version),
        }


def parse_version(text: str) -> int:
    """Return the version; 0 if it is no positive integer in digits."""
    plain = text.isascii() and text.isdigit() and len(text) < _DIGITS
    return int(text) if plain else 0


def announced_id(headers: Mapping[str, str]) -> str | None:
    """Return the id that `Nats-Msg-Id` announces: all of it, or what stands before its first dot.

    The part after the dot keeps message ids apart that share one id, since a stream remembers
    message ids without their subjects.
    """
    message_id = header(headers, MESSAGE_ID)
    return None if message_id is None else message_id.partition(".")[0]


class MessageType(Generic[VersionedT]):
    """A message in every version that was ever on the wire, oldest first.

    `encode` writes the oldest version that can express all of the message, so that programs of an
    older release read what they can; `decode` takes any and returns the current one, so nothing
    outside this package sees an old shape.
    """

    def __init__(
        self,
        name: str,
        *older: type[Versioned],
        current: type[VersionedT],
        from_clients: bool = False,
    ) -> None:
        """Describe a message type.

        `from_clients`: a message that would take too much memory for its size is not decoded.
        """
        self.name = name
        self._from_clients = from_clients
        self.current = current
        shapes: tuple[type[Versioned], ...] = (*older, current)
        self._versions = {shape.VERSION: shape for shape in shapes}
        if list(self._versions) != list(range(1, len(shapes) + 1)):
            raise TypeError(f"{name}: versions must run 1, 2, … without a gap")

    def encode(
        self, message: VersionedT, content_type: str = codecs.CBOR
    ) -> tuple[dict[str, str], bytes]:
        """Return headers and payload. `Nats-Msg-Id` is among the headers.

        Raises:
            MalformedMessage: a text in it is none that UTF-8 can say.
        """
        written = message.to_oldest_version()
        version = written.VERSION
        body = {f"v{version}": written.to_wire()}
        headers = self.headers(content_type, version)
        headers[MESSAGE_ID] = str(message.id)
        return headers, codecs.dumps(content_type, body)

    def headers(self, content_type: str, version: int | None = None) -> dict[str, str]:
        return ContentInfo(content_type, self.name, version or self.current.VERSION).headers()

    def negotiate(self, headers: Mapping[str, str]) -> ContentInfo:
        """Check by its headers alone that this build reads such a message.

        The content type in what it returns is one of `codecs.CONTENT_TYPES`.

        Raises:
            UnsupportedMessage: another type, an unknown content type, or `NewerVersion`.
            MalformedMessage: headers are missing or make no sense.
        """
        info = ContentInfo.from_headers(headers)
        if info.message_type != self.name:
            raise UnsupportedMessage(
                f"message type {info.message_type[:80]!r} is not {self.name!r}"
            )
        try:
            info = info._replace(content_type=codecs.parse_content_type(info.content_type))
        except ValueError as error:
            raise UnsupportedMessage(str(error)) from error
        if info.message_version > self.current.VERSION:
            raise NewerVersion(
                f"{self.name} version {info.message_version}; "
                f"this build reads up to {self.current.VERSION}"
            )
        return info

    def decode(self, headers: Mapping[str, str], payload: bytes) -> VersionedT:
        """Negotiate, then read the payload in the version announced and upgrade it.

        Raises:
            UnsupportedMessage: not for this build; the payload was not touched.
            MalformedMessage: headers or payload break the contract that they announce.
        """
        info = self.negotiate(headers)
        if self._from_clients:
            require_affordable(info.content_type, payload)
        version, body = self._open_envelope(info.content_type, payload)
        if version != info.message_version:
            raise MalformedMessage(
                f"{self.name}: headers say version {info.message_version}, the body {version}"
            )
        message = self._upgrade(version, body)
        announced = announced_id(headers)
        if announced is not None and announced != str(message.id):
            raise MalformedMessage(f"{MESSAGE_ID} is {announced[:40]!r}, the id is {message.id}")
        return message

    def decode_stored(self, payload: bytes, *, from_client: bool = False) -> VersionedT:
        """Read bytes that lie somewhere without headers: they tell their encoding and version.

        `from_client`: what would take too much memory for its size is not decoded. What was
        accepted once is read without: it has to be readable for ever.

        Raises:
            MalformedMessage, NewerVersion: as `decode`.
        """
        # An object starts with a brace or a blank in JSON, above 0x9f in CBOR.
        content_type = codecs.JSON if payload[:1].isascii() else codecs.CBOR
        if from_client:
            require_affordable(content_type, payload)
        version, body = self._open_envelope(content_type, payload)
        if version not in self._versions:
            raise NewerVersion(f"{self.name}: the body is of version {version}")
        return self._upgrade(version, body)

    def _open_envelope(self, content_type: str, payload: bytes) -> tuple[int, Any]:
        """Return the version that the body names, and its content."""
        body = codecs.loads(content_type, payload)
        tags = list(body) if isinstance(body, dict) else []
        if len(tags) != 1 or not _is_version(tags[0]):
            raise MalformedMessage(
                f"{self.name}: the body is no object with its version as one key"
            )
        return int(tags[0][1:]), body[tags[0]]

    def _upgrade(self, version: int, data: Any) -> VersionedT:
        shape = self._versions[version]
        try:
            message: Versioned = shape.from_wire(data)
        except ValidationError as error:
            raise MalformedMessage(f"{shape.__name__}: {first_error(error)}") from error
        while type(message) is not self.current:  # `isinstance` takes many times as long
            message = message.upgrade()
        return message
