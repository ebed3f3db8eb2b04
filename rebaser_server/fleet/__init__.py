"""Many change sets on many Rebasers: tasks, who is there, what was left undone, upkeep."""
