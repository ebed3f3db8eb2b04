"""What is kept of a change set: its log of commits, and the states that follow from it."""
