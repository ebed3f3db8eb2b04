"""Secrets are read as they are at that moment, and what is no secret is reported by its file."""

import ssl
from pathlib import Path

import nkeys
import pytest

from rebaser_core.jetstream import NatsUnreachable
from rebaser_core.jetstream.connect import Login, requires_tls
from tests.security.identities import new_key, operator


def test_files_are_read_at_each_call(tmp_path: Path) -> None:
    file, key = tmp_path / "rebaser.creds", tmp_path / "seed"
    login = Login(credentials=file, nkeys_seed=key)
    for _ in range(2):
        file.write_text(operator().credentials)
        key.write_text(new_key(nkeys.PREFIX_BYTE_USER)[0])

        assert login.read_credentials() == file.read_text()
        assert login.read_seed() == key.read_text()


def test_a_part_of_a_credentials_file_is_refused_wherever_it_ends(tmp_path: Path) -> None:
    file = tmp_path / "rebaser.creds"
    text = operator().credentials.rstrip("-\n")
    for end in range(0, len(text), 7):
        file.write_text(text[:end])
        with pytest.raises(NatsUnreachable, match=r"credentials file .*rebaser\.creds: "):
            Login(credentials=file).read_credentials()


@pytest.mark.parametrize("content", [b"", b"SUhush", b"\xff\xfe", None])
def test_a_file_without_a_seed_is_reported_without_what_it_has(
    tmp_path: Path, content: bytes | None
) -> None:
    file = tmp_path / "seed"
    if content is not None:
        file.write_bytes(content)

    with pytest.raises(NatsUnreachable, match=r"NKey file .*seed: ") as told:
        Login(nkeys_seed=file).read_seed()

    assert "hush" not in str(told.value)


def test_no_login_reads_nothing_and_wants_no_tls() -> None:
    login = Login()

    assert (login.read_credentials(), login.read_seed(), login.read_tls()) == (None, None, None)
    assert not requires_tls(("nats://a",), login)


def test_tls_is_wanted_by_a_url_a_context_or_a_function() -> None:
    context = ssl.create_default_context()

    assert requires_tls(("nats://a", "tls://b"), Login())
    for tls in (context, lambda: context):
        assert requires_tls(("nats://a",), Login(tls=tls))
        assert Login(tls=tls).read_tls() is context
