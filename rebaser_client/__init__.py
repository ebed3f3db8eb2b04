"""Asking: enqueue updates and await their outcome."""

from rebaser_client.client import RebaserClient, connect
from rebaser_client.errors import ClientError, NotStored, Unreachable

__all__ = ["ClientError", "NotStored", "RebaserClient", "Unreachable", "connect"]
