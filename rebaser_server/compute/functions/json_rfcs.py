"""JSON pointers (RFC 6901) and merge patches (RFC 7396)."""

import re
from typing import Any, Final

_INDEX: Final = re.compile("0|[1-9][0-9]{,17}")


def resolve_pointer(document: Any, pointer: str, default: Any) -> Any:
    """What `pointer` leads to in `document`, or `default` if it leads nowhere."""
    if pointer and not pointer.startswith("/"):
        raise ValueError("a JSON pointer is empty or begins with '/'")
    for escaped in pointer.split("/")[1:]:
        key = escaped.replace("~1", "/").replace("~0", "~")
        if isinstance(document, dict) and key in document:
            document = document[key]
        elif isinstance(document, list) and _INDEX.fullmatch(key) and int(key) < len(document):
            document = document[int(key)]
        else:
            return default
    return document


def merge_patch(target: Any, patch: Any) -> Any:
    """`target` with `patch` applied; neither is changed."""
    if not isinstance(patch, dict):
        return patch
    old = target if isinstance(target, dict) else {}
    new = {key: merge_patch(old.get(key), item) for key, item in patch.items() if item is not None}
    return {key: item for key, item in old.items() if key not in patch} | new
