"""The command line: a module for each subject, with `add`, which declares its commands.

A command's handler is a coroutine that takes the settings, or a deployment, and the arguments,
and returns an exit code. Handlers import what they need when they run: `rebaser --help` imports
neither NATS nor pydantic. Only `__main__` imports this package. Begin with `cli.py`.
"""
