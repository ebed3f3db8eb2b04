"""Records that NATS keeps by key: what is paused, and the registry of workspaces and change sets.

`rebaser_client` and `rebaser_server` may import it. Begin with `registry_records.py`.
"""
