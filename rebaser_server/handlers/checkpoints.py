"""Contents of keys, and their checkpoints: files of plain JSON beside those of graphs."""

import asyncio
import json
from contextlib import suppress
from dataclasses import dataclass
from sys import getsizeof
from typing import Any, Final

from rebaser_core.ids import ChangeSet
from rebaser_server.commit_log.state import Checkpoint, Snapshot, State, StateMachine
from rebaser_server.files import StoreFiles, change_set_directory
from rebaser_server.handlers.content import KeyContent, Outgoing, Timer

_SAVED_AFTER: Final = 100
"""Commits behind the last checkpoint from which a key that goes idle is saved: the log has them
all, and replaying them takes a few milliseconds."""

_BYTES_EACH: Final = 400
"""Bytes of memory that a timer, a call that is sent, or a sender takes beside its arguments."""


@dataclass(frozen=True, slots=True)
class _Saved:
    """Content of a checkpoint."""

    commit: int
    payload: bytes

    def __len__(self) -> int:
        return 1


class KeyMachine(StateMachine):
    """A `StateMachine` whose contents are `KeyContent`."""

    def __init__(self, files: StoreFiles) -> None:
        self._files = files

    def empty(self) -> KeyContent:
        return KeyContent()

    def is_worth_saving(self, state: State) -> bool:
        return state.unsaved.commits >= _SAVED_AFTER

    def require_sound(self, state: State) -> None:
        """Do nothing: a state relies on nothing else."""

    def footprint(self, state: State) -> int:
        content = content_of(state)
        calls: list[Outgoing | Timer] = [*content.outgoing, *content.timers.values()]
        texts = sum(map(getsizeof, (content.state, *(call.arguments for call in calls))))
        return texts + _BYTES_EACH * (len(calls) + len(content.heard))

    def take(self, state: State, metadata: dict[str, Any], *, whole: bool) -> _Saved:
        del whole
        data = {"content": content_of(state).to_json(), "metadata": metadata}
        return _Saved(state.commit, json.dumps(data).encode())

    def save(self, change_set: ChangeSet, snapshot: Snapshot) -> None:
        if not isinstance(snapshot, _Saved):
            raise TypeError(f"{type(snapshot).__name__} was not taken here")
        # The name sorts as the number does.
        self._files.put(
            f"{change_set_directory(change_set)}/{snapshot.commit:020}", snapshot.payload
        )

    def put_back(self, state: State, snapshot: Snapshot) -> None:
        """Do nothing: each checkpoint is whole."""

    def load(self, change_set: ChangeSet, at: int | None = None) -> Checkpoint | None:
        found = self._read(change_set, at)
        if found is None:
            return None
        commit, data = found
        return Checkpoint(commit, data["metadata"], KeyContent.from_json(data["content"]))

    def metadata(self, change_set: ChangeSet) -> dict[str, Any] | None:
        found = self._read(change_set, None)
        return None if found is None else found[1]["metadata"]

    def _read(self, change_set: ChangeSet, at: int | None) -> tuple[int, dict[str, Any]] | None:
        directory = change_set_directory(change_set)
        for name in sorted(self._files.list_names(directory), reverse=True):
            if at is None or int(name) <= at:
                with suppress(FileNotFoundError):  # removed meanwhile: a later one is there
                    return int(name), json.loads(self._files.get(f"{directory}/{name}"))
        return None

    async def on_purge(self, change_set: ChangeSet, commit: int) -> None:
        await asyncio.to_thread(self._delete_before, change_set, commit)

    def _delete_before(self, change_set: ChangeSet, commit: int) -> None:
        directory = change_set_directory(change_set)
        for name in self._files.list_names(directory):
            if int(name) < commit:
                self._files.delete(f"{directory}/{name}")


def content_of(state: State) -> KeyContent:
    """The content of a state of this application."""
    if not isinstance(state.content, KeyContent):
        raise TypeError(f"{type(state.content).__name__} is not the content of a key")
    return state.content
