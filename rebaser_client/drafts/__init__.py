"""Graphs as people write them: values and functions by name, compared with a change set.

A draft does no I/O; a named change set reads, plans and sends. Only the client imports this
package. Begin with `draft.py`.
"""
