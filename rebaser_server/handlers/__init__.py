"""Handlers: other people's code on the queue, as another application of the core.

A `Service` has handlers, which are called for its keys: for one key one after the other, each call
once. Begin with `service.py`, which users see; `application.py` is what the core drives,
`content.py` the state of a key.
"""

from rebaser_server.handlers.service import Context, Reject, Service

__all__ = ["Context", "Reject", "Service"]
