"""Messages and their versions, subjects, streams, the storing of requests, and a JetStream client.

The package hides how bytes look on the wire and how versions differ. Client and server import it.
Begin with `messages.py` for a request and its reply, and with `streams.py` for where they are kept.
"""
