"""Change sets that are known and at rest, as many as one likes, in seconds."""

from rebaser_core.commits import Commit, CommitV2, ControlState
from rebaser_core.ids import ChangeSet, ChangeSetId, RequestId, WorkspaceId
from rebaser_core.jetstream import JetStream
from rebaser_core.subjects import Subjects

WORKSPACES = 1_000
WINDOW = 5_000  # lines on their way to be stored


async def load(js: JetStream, count: int) -> list[ChangeSet]:
    """Known and at rest: a line each, that of a release. They are the same but for the subject."""
    subjects = Subjects()
    line = CommitV2(id=RequestId(), previous=0, control=ControlState(epoch=1))
    headers, payload = Commit.encode(line)
    headers.pop("Nats-Msg-Id")
    workspaces = [WorkspaceId() for _ in range(WORKSPACES)]
    first = int(ChangeSetId())
    change_sets = [
        ChangeSet(workspaces[n % WORKSPACES], ChangeSetId.from_int(first + n)) for n in range(count)
    ]
    for number, change_set in enumerate(change_sets, 1):
        if number % WINDOW and number < count:
            await js.nc.publish(subjects.commits(change_set), payload, headers=headers)
        else:  # its receipt comes after those before it were stored
            await js.publish(subjects.commits(change_set), payload, headers=headers, timeout=60)
    info = await js.stream_info(subjects.commits_stream)
    if info.state.messages != count:
        raise RuntimeError(f"{info['state']['messages']} of {count} lines were stored")
    return change_sets
