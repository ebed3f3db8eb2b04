"""The dependent values update as a job of the core: planned, evaluated, its results collected.

`graph_application` alone imports it. Begin with `planner.py`.
"""
