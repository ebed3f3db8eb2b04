"""The command line: `declarations.py` has every command, a module for each subject what they do.

A command's handler is a coroutine that takes the settings, or a deployment, and the arguments,
and returns an exit code. Its module is imported when the command runs: `rebaser --help` imports
neither NATS nor pydantic. Only `__main__` imports this package. Begin with `cli.py`.
"""
