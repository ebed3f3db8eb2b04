"""Common parts of commands: arguments, the connection to a deployment, exit codes, hints.

Only `commands` imports it. Begin with `arguments.py`.
"""
