"""Questions that any Rebaser answers over NATS, and their answers: values, outcomes, provenance.

`rebaser_client` and `rebaser_server` may import it. Begin with `query_protocol.py`.
"""
