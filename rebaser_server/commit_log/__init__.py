"""The durable part of a change set: its log of commits, and the states that follow from it.

The content of a state is the application's: `state.py` says what the log asks of it.
`processor` and packages above it may import it. Begin with `log.py`, then `state_loader.py`.
"""
