"""The output of commands: tables and trees for people, JSON for programs.

Only `commands` imports it. Begin with `progress.py`.
"""
