"""How commands show what they found: as tables and trees for people, as JSON for programs.

Only `commands` imports it. Begin with `output.py`.
"""
