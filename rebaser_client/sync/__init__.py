"""The client without `await`, for scripts and notebooks: `connect`, and then as `RebaserClient`.

One background thread runs the asynchronous client; each call here waits for its method there.
Calls may come from several threads. Begin with `sync_client.py`.
"""

from rebaser_client.sync.sync_client import (
    SyncAddressBook,
    SyncBranch,
    SyncChangeSet,
    SyncClient,
    SyncOperations,
    SyncReader,
    SyncWorkspace,
    SyncWorkspaces,
    connect,
)

__all__ = [
    "SyncAddressBook",
    "SyncBranch",
    "SyncChangeSet",
    "SyncClient",
    "SyncOperations",
    "SyncReader",
    "SyncWorkspace",
    "SyncWorkspaces",
    "connect",
]
