"""The HTTP endpoint of a running Rebaser: health, metrics, settings in force, and a page.

`service` imports it, `commands` and `doctor` share how it reads dead letters and asks Rebasers, and
containers run `probe`. What is shown of an application is its `Presentation`. Begin with
`endpoint.py`.
"""
