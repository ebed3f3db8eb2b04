"""The JetStream API of the simulated server: what it answers, and what that brings about."""

import base64
from typing import TYPE_CHECKING, Any, Final

from tests.schedules.consumers import PullConsumer, PushConsumer
from tests.schedules.stream import Reply, Stored, Stream, date, failure

if TYPE_CHECKING:
    from tests.schedules.broker import Broker

PULL: Final = "CONSUMER.MSG.NEXT."
"""Not among the verbs here: its answers are deliveries."""

_DONE: Final = {"success": True}


def answer_to(broker: "Broker", verb: str, body: dict[str, Any]) -> Reply:
    """The answer, once it is done. A verb that the product does not use is a `KeyError`."""
    if broker.leaderless:
        return failure(503, 10008, "JetStream system temporarily unavailable")
    if verb == "INFO":
        return {"storage": 0, "limits": {"max_storage": -1}}
    kind, _, rest = verb.partition(".")
    if kind == "STREAM":
        action, _, name = rest.rpartition(".")
        names = [name]
    else:
        action, *names = rest.split(".", 3)
    stream = broker.streams.get(names[0])
    if verb.startswith("STREAM.CREATE."):
        if stream is None:
            stream = broker.streams[names[0]] = Stream(body)
        return stream.info(None, broker.time())
    if stream is None:
        return failure(404, 10059, "stream not found")
    return _VERBS[kind, action](broker, stream, names[1:], body)


def _info(broker: "Broker", stream: Stream, _: list[str], body: dict[str, Any]) -> Reply:
    return stream.info(body.get("subjects_filter"), broker.time())


def _get(broker: "Broker", stream: Stream, _: list[str], body: dict[str, Any]) -> Reply:
    found = stream.find(body, broker.time())
    return _told(found) if found else failure(404, 10037, "no message found")


def _delete(broker: "Broker", stream: Stream, _: list[str], body: dict[str, Any]) -> Reply:
    there = stream.delete(body["seq"])
    broker.note("delete", stream.name, body["seq"], "" if there else "not there")
    if there:
        return _DONE
    if broker.weather.random.random() < 0.5:
        return failure(500, 10057, "stream store EOF")
    return failure(400, 10043, f"sequence {body['seq']} not found")


def _purge(broker: "Broker", stream: Stream, _: list[str], body: dict[str, Any]) -> Reply:
    below = body.get("seq", stream.last_sequence + 1)
    there = stream.following(1, body.get("filter", ">"))
    gone = [stored.sequence for stored in there if stored.sequence < below]
    for sequence in gone:
        stream.delete(sequence)
    broker.note("purge", body.get("filter"), below)
    return {**_DONE, "purged": len(gone)}


def _create(broker: "Broker", stream: Stream, names: list[str], body: dict[str, Any]) -> Reply:
    name, config = names[0], body["config"]
    consumer = stream.consumers.get(name)
    if consumer is None:
        kind = PushConsumer if "deliver_subject" in config else PullConsumer
        consumer = stream.consumers[name] = kind(broker, stream, name, config)
        if isinstance(consumer, PushConsumer):
            broker.later(broker.weather.moment(), consumer.begin)
    return consumer.info()


def _consumer(broker: "Broker", stream: Stream, names: list[str], _: dict[str, Any]) -> Reply:
    consumer = stream.consumers.get(names[0])
    return _no_consumer() if consumer is None else consumer.info()


def _drop(broker: "Broker", stream: Stream, names: list[str], _: dict[str, Any]) -> Reply:
    if names[0] not in stream.consumers:
        return _no_consumer()
    broker.drop(stream, names[0])
    return _DONE


def _no_consumer() -> Reply:
    return failure(404, 10014, "consumer not found")


_VERBS: Final = {
    ("STREAM", "INFO"): _info,
    ("STREAM", "MSG.GET"): _get,
    ("STREAM", "MSG.DELETE"): _delete,
    ("STREAM", "PURGE"): _purge,
    ("CONSUMER", "CREATE"): _create,
    ("CONSUMER", "INFO"): _consumer,
    ("CONSUMER", "DELETE"): _drop,
}


def _told(stored: Stored) -> Reply:
    block = "NATS/1.0\r\n" + "".join(f"{k}: {v}\r\n" for k, v in stored.headers.items()) + "\r\n"
    return {
        "message": {
            "subject": stored.subject,
            "seq": stored.sequence,
            "time": date(stored.time),
            "hdrs": base64.b64encode(block.encode()).decode(),
            "data": base64.b64encode(stored.payload).decode(),
        }
    }
