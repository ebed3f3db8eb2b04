"""The work of a branch's run beside its requests: start the branch, follow head, close it.

Only `graph_application` imports it. Begin with `branch_runner.py`.
"""
