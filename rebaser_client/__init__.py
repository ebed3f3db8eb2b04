"""Asking: enqueue updates and await their outcome."""

from rebaser_client.client import RebaserClient, connect
from rebaser_client.errors import ClientError, NotConfirmed, Unreachable

__all__ = ["ClientError", "NotConfirmed", "RebaserClient", "Unreachable", "connect"]
