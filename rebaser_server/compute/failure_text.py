"""The messages of values that fail: short, and made without trust in what they tell of."""

from typing import Final

from rebaser_server.compute.json_values import NotJson

MAX_MESSAGE: Final = 1000
"""Characters of a failed value's message."""
_MIB: Final = 1 << 20


class ResultTooLarge(NotJson):
    """A result that has more bytes than a value may have."""

    def __init__(self, size: int, most: int) -> None:
        """`size`: its bytes as JSON, at least."""
        unit = _MIB if size // _MIB > most // _MIB > 0 else 1
        word = "MiB" if unit == _MIB else "bytes"
        has, may = _format_size(size, unit), _format_size(most, unit)
        super().__init__(f"the result has {has} {word}; at most {may} are allowed")


def describe(error: BaseException) -> str:
    """The message for users of an exception, whatever its own code does."""
    name = type(error).__name__
    try:
        # Of the type that it is said to be: a subclass of str may have methods of its own.
        text = str.__getitem__(str(error), slice(MAX_MESSAGE))
    except BaseException:  # an exception's own code is a function's, too
        return name
    if isinstance(error, ResultTooLarge):
        return text
    if isinstance(error, NotJson):
        return f"the result cannot be a value: {text}"
    return f"{name}: {text}" if text else name


def truncate(text: str) -> str:
    """A message as it is stored."""
    text = text[: MAX_MESSAGE + 1].encode(errors="replace").decode()
    return text if len(text) <= MAX_MESSAGE else text[: MAX_MESSAGE - 1] + "…"


def _format_size(size: int, unit: int) -> str:
    return f"{size:,}" if unit == 1 else f"{size / unit:.4g}"
