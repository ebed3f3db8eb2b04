"""What is kept of a change set: its log of commits, and the states that follow from it.

`processor` and packages above it may import it. Begin with `log.py`, then `state_loader.py`.
"""
