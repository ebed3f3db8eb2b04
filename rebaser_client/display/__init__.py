"""Values and changes as tables: HTML for notebooks, pandas and Arrow for programs.

Every module of the client may import it; it imports pandas and pyarrow when they are asked for.
"""
