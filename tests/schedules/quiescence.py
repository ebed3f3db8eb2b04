"""What is still to be done, as streams, consumers and logs have it; nothing of it is asked for."""

from typing import Any

from rebaser_core.subjects import TASKS_CONSUMER, Subjects
from rebaser_server.commit_log.log import UNFINISHED
from tests.chaos.history import History, Kind
from tests.schedules.broker import Broker

Left = dict[str, list[Any]]


def left_in(broker: Broker, subjects: Subjects) -> Left:
    """Messages, consumers and needs, by kind; none of them if all is at rest."""
    requests = broker.streams[subjects.requests_stream]
    tasks = broker.streams[subjects.tasks_stream]
    commits = broker.streams[subjects.commits_stream].by_subject
    heads = {subject: next(reversed(lines.values())) for subject, lines in commits.items()}
    left = {
        "arriving": [requests.name] if broker.arriving(requests.name) else [],
        "requests": list(requests.messages),
        "tasks": list(tasks.messages),
        "consumers": list(requests.consumers),
        "held": tasks.consumers[TASKS_CONSUMER].held,
        "due": [subject[-4:] for subject, line in heads.items() if UNFINISHED in line.headers],
    }
    return {what: there for what, there in left.items() if there}


def write_down(history: History, broker: Broker, subjects: Subjects, left: Left) -> None:
    """Tell the judge of what is `left`."""
    commits = broker.streams[subjects.commits_stream].by_subject
    history.add(
        Kind.REST,
        **{what: len(left.get(what, ())) for what in ("requests", "tasks", "consumers", "held")},
        left=left.get("requests", ()),
        last_sequence=broker.streams[subjects.requests_stream].last_sequence,
        first_lines={
            str(subjects.parse_change_set(subject)): next(iter(lines))
            for subject, lines in commits.items()
        },
        details=left,
    )
