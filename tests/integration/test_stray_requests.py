"""A request under a subject that names no change set ends in the dead letters."""

from rebaser_core.ids import RequestId
from rebaser_server.cluster.membership import Membership
from rebaser_server.cluster.reconciler import StrayRequests, stray_letters_subject
from rebaser_server.processor.dead_letters import REASON
from tests.helpers.batches import ExampleGraph
from tests.helpers.deployment import Deployment, new_change_sets
from tests.helpers.poison_data import publish_raw


async def test_a_stray_request_is_moved_to_the_dead_letters_and_a_sound_one_stays(
    deployment: Deployment,
) -> None:
    js, streams = deployment.js, deployment.streams
    [change_set] = new_change_sets(1)
    await deployment.client.enqueue_updates(*change_set, ExampleGraph().define(1, 2))
    lower = f"rebaser.requests.{str(RequestId()).lower()}.{change_set.change_set_id}"
    strays = [lower.encode(), b"rebaser.requests.\xff.x", b"rebaser.requests.x"]
    await publish_raw(deployment.nats.port, [(subject, b"body") for subject in strays])

    for _ in range(2):
        await StrayRequests(streams, Membership(streams, "me")).move()

    assert await js.stream_subjects(streams.requests_stream) == {streams.requests(change_set): 1}
    assert await js.stream_subjects(streams.dead_letters_stream) == {
        stray_letters_subject(streams): 3
    }
    letter = await js.get_message(
        streams.dead_letters_stream, last_by_subject=stray_letters_subject(streams)
    )
    assert letter is not None
    assert letter.payload == b"body"
    assert "names no change set" in letter.headers[REASON]
