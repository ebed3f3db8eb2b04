"""Names in the product: one class for each name, and a file for each word of the field.

Both lists of exceptions only shrink: an entry that is no exception fails its test.
"""

import ast
from collections import defaultdict

from tests.helpers.product import MODULES

SHARED_CLASS_NAMES: set[str] = set()
"""Names of public classes that more than one module defines."""

TERMS = (
    *("queue", "lease", "heartbeat", "fence", "commit_log", "checkpoint", "compaction", "vacuum"),
    *("retry", "backoff", "dead_letter", "duplicate", "idle", "membership", "reconciler"),
    *("dependents", "partition", "plan", "executor", "dvu", "takeover", "outcome"),
)
"""What a stranger to the code who knows such services searches for among its files."""

INSIDE = {
    "heartbeat": "rebaser_server/cluster/membership.py",
    "backoff": "rebaser_core/jetstream/deadlines.py",
    "retry": "rebaser_core/requests.py",
    "vacuum": "rebaser_server/store/checkpoints.py",
    "fence": "rebaser_server/commit_log/log.py",
    "duplicate": "rebaser_server/processor/requests.py",
    "idle": "rebaser_server/processor/run.py",
    "dependents": "rebaser_server/compute/affected.py",
}
"""Terms that no path has, each with the module that does it and says the word."""


def test_each_class_name_is_defined_once() -> None:
    """A reader who searches for a class finds one."""
    definitions = defaultdict(list)
    for path, text in MODULES.items():
        for node in ast.parse(text).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                definitions[node.name].append(path)

    shared = {name: paths for name, paths in definitions.items() if len(paths) > 1}
    assert set(shared) == SHARED_CLASS_NAMES, shared


def test_each_term_of_the_field_is_in_the_path_of_a_module() -> None:
    """Or, as listed, in the text of the module that a reader would look for."""
    missing = {term for term in TERMS if not any(term in path for path in MODULES)}

    assert missing == set(INSIDE)
    assert [term for term, path in INSIDE.items() if term not in MODULES[path].lower()] == []
