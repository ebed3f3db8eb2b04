"""What a run does for a branch beside its requests: begin it, follow head, close it.

Only `processor` imports it. Begin with `branch_runner.py`.
"""
