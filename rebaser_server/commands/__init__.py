"""What `rebaser` can be told to do: a module a subject, each with `add`, which declares it.

A command is a function of the settings and its arguments that returns an exit code.
What it needs it imports itself: Delta and Arrow take a second that `rebaser settings`
and a mistyped variable need not wait for.
"""
