"""The configuration on which the protocol rests."""

from datetime import timedelta

import pytest

from rebaser_core.jetstream import ConsumerConfig
from rebaser_core.stream_configs import (
    DUPLICATE_WINDOW,
    StreamOptions,
    stream_configs,
    tasks_consumer_config,
)
from rebaser_core.subjects import Subjects


def configs(prefix=None, **options):
    subjects = Subjects(prefix)
    made = {c.name: c for c in stream_configs(subjects, StreamOptions(**options))}
    names = ("requests", "tasks", "commits", "dead_letters")
    return {name: made[getattr(subjects, f"{name}_stream")] for name in names}


@pytest.mark.parametrize("name", configs())
def test_no_stream_expires_messages(name):
    """A message that a limit removes is a lost request, task, commit or dead letter."""
    config = configs()[name]

    assert (config.max_age, config.max_msgs, config.max_bytes) == (timedelta(), -1, -1)
    assert config.discard == "new"
    assert config.storage == "file"


def test_only_tasks_are_a_work_queue():
    retention = {name: config.retention for name, config in configs().items()}

    assert retention.pop("tasks") == "workqueue"
    assert set(retention.values()) == {"limits"}


def test_a_change_set_has_one_task_at_most_and_its_second_is_refused():
    tasks = configs()["tasks"]

    assert tasks.max_msgs_per_subject == 1
    assert tasks.discard_new_per_subject is True


def test_requests_have_the_limits_of_the_deployment_and_refuse_what_is_new():
    """Never what is stored: a request that makes room for another one is a lost request."""
    limits = {"change_set_requests": 5, "requests": 7}
    limited, unlimited = configs(**limits), configs()

    requests = limited.pop("requests")
    assert requests.max_msgs_per_subject == 5
    assert requests.max_msgs == 7
    assert requests.discard == "new"
    assert requests.discard_new_per_subject is True
    assert unlimited.pop("requests").discard_new_per_subject is False
    assert limited == unlimited


@pytest.mark.parametrize("name", configs())
def test_more_consumers_are_allowed_than_where_nothing_is_said(name):
    """nats-server 2.15 allows 1,000 then; each change set that is being worked on has one."""
    assert configs()[name].max_consumers > 10_000


def test_request_ids_are_remembered_longer_than_clients_retry():
    assert configs()["requests"].duplicate_window == DUPLICATE_WINDOW
    assert timedelta(minutes=10) == DUPLICATE_WINDOW


def test_every_stream_can_be_read_directly():
    assert all(config.allow_direct for config in configs().values())


def test_streams_do_not_overlap():
    subjects = [subject for config in configs().values() for subject in config.subjects]

    assert sorted(subjects) == [
        "rebaser.commits.>",
        "rebaser.dead-letters.>",
        "rebaser.requests.>",
        "rebaser.tasks.>",
    ]


def test_a_prefix_moves_names_and_subjects():
    tasks = configs("acme")["tasks"]

    assert (tasks.name, tasks.subjects) == ("acme_REBASER_TASKS", ["acme.rebaser.tasks.>"])


def test_replicas_are_every_streams():
    assert {config.num_replicas for config in configs(replicas=3).values()} == {3}


def test_tasks_are_redelivered_for_ever_and_without_a_cap():
    consumer = tasks_consumer_config(Subjects("acme"), timedelta(seconds=1.5))

    assert consumer == ConsumerConfig(
        durable_name="rebaser-tasks",
        ack_policy="explicit",
        ack_wait=timedelta(seconds=1.5),
        max_deliver=-1,
        max_ack_pending=-1,
        filter_subject="acme.rebaser.tasks.*.*.*",
    )
