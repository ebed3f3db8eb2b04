"""Settings: `REBASER_*` variables, read once and checked before anything starts.

Every package above `telemetry` may import it. Begin with `settings.py`, which lists them all.
"""
