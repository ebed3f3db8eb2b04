"""Whoever catches an error of a branch catches its leaves."""

from rebaser_core import errors


def test_a_newer_version_is_unsupported_and_not_malformed():
    """It waits for a newer build, where a malformed message is dead."""
    assert issubclass(errors.NewerVersion, errors.UnsupportedMessage)
    assert not issubclass(errors.NewerVersion, errors.MalformedMessage)


def test_every_error_is_ours():
    all_kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    kinds = [kind for kind in all_kinds if kind.__module__ == errors.__name__]

    assert all(issubclass(kind, errors.RebaserError) for kind in kinds)
