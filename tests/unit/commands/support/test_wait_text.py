"""What a command that takes long says it is waiting for."""

import pytest

from rebaser_client.outcomes import Progress
from rebaser_server.commands.support.progress import describe


@pytest.mark.parametrize(
    ("progress", "text"),
    [
        (Progress(), "waiting for a Rebaser to begin the update"),
        (Progress(0, 1_070), "computing 0 of 1,070 values; Spark may be starting"),
        (Progress(12, 70), "computing 12 of 70 values"),
    ],
)
def test_a_wait_is_explained_by_how_far_the_update_is(progress: Progress, text: str) -> None:
    assert describe(progress) == text
