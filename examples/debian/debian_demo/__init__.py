"""Which Debian packages does one security fix reach? An application of Rebaser, on real input.

Begin with `run.py`; `command.py` makes it `rebaser demo`.
"""
