"""What people do on the page, and operators by commands: each action by its role, and logged.

`ops/serve.py` makes the service of the page; commands import single modules. Begin with
`action.py`.
"""
