"""The connection to NATS: connecting, sending and parsing fast, requests with replies."""
