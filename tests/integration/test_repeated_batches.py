"""Loading the same batch again computes nothing, whatever its size."""

from tests.helpers.batches import Batch, new_id
from tests.helpers.deployment import Deployment, new_change_sets


def priced(count: int) -> tuple[Batch, Batch]:
    """The function, and so many values with one computed from each."""
    add, ids = new_id(), [(new_id(), new_id()) for _ in range(count)]
    puts: Batch = []
    for number, (net, gross) in enumerate(ids):
        inputs = {"values": [net]}
        puts.append({"putValue": {"valueId": net, "value": number}})
        puts.append({"putValue": {"valueId": gross, "funcId": add, "inputs": inputs}})
    return [{"putFunc": {"funcId": add, "name": "add", "runtime": "builtin", "code": "sum"}}], puts


async def test_the_same_batch_again_computes_nothing(deployment: Deployment) -> None:
    """In a message as beside the stream; and it is so after a restart, too."""
    small, large = new_change_sets(2)
    daemon = await deployment.start()
    client = deployment.client

    for change_set, count in ((small, 3), (large, 260)):
        function, puts = priced(count)
        await client.change_set(*change_set).enqueue([*function, *puts], wait="computed")
        await client.change_set(*change_set).enqueue(puts, wait="computed")
        log = await client.change_set(*change_set).log()
        assert [(entry.computed, entry.recomputes) for entry in log] == [
            (False, True),
            (True, False),
            (False, False),
        ]

    daemon.kill()
    await deployment.start()
    for change_set, count in ((small, 3), (large, 260)):
        await client.change_set(*change_set).enqueue([], wait="computed")
        values = await client.change_set(*change_set).values()
        assert {value.status for value in values.values()} == {"ok"}
        assert sum(value.value for value in values.values()) == count * (count - 1)
