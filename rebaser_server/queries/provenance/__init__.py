"""Which edits made a value what it is, from the commits that are kept, and what keeps it back.

`queries` imports it. Begin with `provenance_service.py`.
"""
