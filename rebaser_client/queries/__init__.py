"""Questions to any Rebaser over plain NATS, and what they return.

`value_reader` and `drafts` import it. Begin with `query_sender.py`.
"""
