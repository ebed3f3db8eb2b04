"""The clients that this Python has."""

from importlib.util import find_spec
from typing import Final

from benchmarks.jetstream.nats_jetstream import NatsJetStream
from benchmarks.jetstream.nats_py import NatsPy
from benchmarks.jetstream.ours import Ours

PEERS: Final = (Ours, NatsPy, NatsJetStream) if find_spec("nats.jetstream") else (Ours, NatsPy)
"""Ours first."""
