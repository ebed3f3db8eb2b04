"""The only modules that print: lines, tables, trees and progress bars, with foreign text escaped.

Every package may import it. Begin with `lines.py`.
"""
