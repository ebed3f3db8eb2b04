"""Paths of everything in the store, relative to its root.

| path | what lies there |
|---|---|
| `change_sets/<workspace>/<change set>` | the checkpoints of a change set, one Delta table |
| `deployment.json` | the id of the deployment that the store belongs to |
| `stream_ends.json` | how far the streams of NATS had come when that was last looked at |
| `losses/<stream>-<end>-<end>.json` | what NATS lost, until a person has read of it |
| `results/<key>.batch` | a batch of updates |
| `results/<run>/` | what the runs of one dependent values update leave, see `RunStore` |
| `results/<run>/<key>.batch` | the batch that names the results beside it |
"""

import re
from typing import Final

from rebaser_core.ids import ChangeSet

RESULTS: Final = "results"
CHANGE_SETS: Final = "change_sets"
DEPLOYMENT: Final = "deployment.json"
STREAM_ENDS: Final = "stream_ends.json"
LOSSES: Final = "losses"
_BATCH: Final = ".batch"


def change_set_directory(change_set: ChangeSet) -> str:
    return f"{CHANGE_SETS}/{change_set.workspace_id}/{change_set.change_set_id}"


def loss_file(name: str) -> str:
    return f"{LOSSES}/{name}.json"


def run_directory(run: str) -> str:
    """The directory of a run store, by its key."""
    return f"{RESULTS}/{run}"


def batch_file(key: str) -> str:
    """The path of a batch; never outside of `RESULTS`: clients send keys, and `..` looks like one.

    Raises:
        ValueError: not the key of a batch.
    """
    if run_of_key(key):
        return f"{RESULTS}/{key.replace('.', '/')}{_BATCH}"
    if "/" in key:
        raise ValueError(f"{key!r} is not a key")
    return f"{RESULTS}/{key}{_BATCH}"


def run_of_key(key: str) -> str | None:
    """The key of the run store that a batch lies in; None for a batch that names no results."""
    match = re.fullmatch(r"([0-9a-f]{64})\.[0-9a-f]{64}", key)
    return match[1] if match else None


def is_batch(name: str) -> bool:
    """Whether a file of this name is a batch."""
    return name.endswith(_BATCH)


def key_of(name: str) -> str:
    """The key of a batch, or of a run store, by the name of its file or directory."""
    return name.removesuffix(_BATCH)
