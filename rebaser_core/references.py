"""References: values that name files in the store by a key, at any depth.

See `table_values` for the forms that there are.
"""

import re
from collections.abc import Mapping
from typing import Final

REFERENCE: Final = "$table"
"""Key of an object that is a reference, or claims to be one."""
KEY: Final = re.compile("[0-9a-f]{64}")


def keys_in(text: str) -> set[str]:
    """Return the keys and digests of all files that a JSON text names."""
    return set(KEY.findall(text)) if REFERENCE in text else set()


def has_reference(value: object) -> bool:
    """Whether a value is a reference, or has one at any depth, or claims to."""
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, Mapping):
            if REFERENCE in each:
                return True
            waiting += each.values()
        elif isinstance(each, list):
            waiting += each
    return False
