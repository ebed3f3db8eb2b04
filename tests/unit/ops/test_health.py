"""A Rebaser is alive while its event loop turns, however seldom it is asked and whatever NATS does.

That it says what NATS and the store do is shown in tests/integration/test_ops_endpoint.py.
"""

import time
from pathlib import Path

import pytest
from nats.aio.client import Client

from rebaser_server.files import SharedFiles
from rebaser_server.ops.status import HealthMonitor
from rebaser_server.runtime.tasks import Shutdown
from rebaser_server.telemetry.work_stats import WorkStats


def test_a_rebaser_that_is_asked_for_the_first_time_in_an_hour_is_alive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in an outage of NATS, of which the time since the last question says nothing."""
    monitor = HealthMonitor(Client(), Shutdown(), SharedFiles(str(tmp_path)), WorkStats())
    an_hour_later = time.monotonic() + 3600
    monkeypatch.setattr(time, "monotonic", lambda: an_hour_later)

    assert monitor.alive().ok
