"""What is said and stored: messages and their versions, subjects, streams, and a JetStream client.

It hides how bytes look on the wire and which version says what. Client and server import it. Begin
with `messages.py` for a request and its reply, and with `streams.py` for where they are kept.
"""
