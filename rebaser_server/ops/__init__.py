"""The HTTP endpoint of a running Rebaser: health, metrics, settings in force, and a page.

`service` imports it, and containers run `probe`. Begin with `endpoint.py`.
"""
