"""The stores of a deployment, opened as its settings say."""

from rebaser_core.jetstream import JetStream, ObjectStore
from rebaser_core.subjects import Subjects
from rebaser_server.commit_log.batch_store import BatchStore
from rebaser_server.files.batch_files import BatchFiles
from rebaser_server.settings.settings import Settings


def open_batch_store(js: JetStream, subjects: Subjects, settings: Settings) -> BatchStore:
    """Return the store of batches; makes no request."""
    return BatchStore(
        ObjectStore(js, subjects.batches_bucket),
        BatchFiles(settings.store.root, settings.store.options),
        settings.limits.batch_bytes,
    )
