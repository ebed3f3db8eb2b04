"""Certificates, NKeys and JWTs for tests, made here and now."""

import base64
import hashlib
import json
import os
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import nkeys
import trustme


@dataclass(frozen=True)
class Certificates:
    """Files: an authority, and what it signed for a server on loopback and for a client."""

    ca: Path
    server: Path
    client: Path
    stranger: Path
    """A client's certificate, of an authority that the server does not know."""
    expired: Path
    """The server's, which ended yesterday."""
    elsewhere: Path
    """The server's, of another name than that of its address."""

    def server_config(self, more: str = "") -> str:
        return f'tls {{ cert_file: "{self.server}", key_file: "{self.server}", {more} }}'

    @property
    def asks_for_certificates(self) -> str:
        return self.server_config(f'ca_file: "{self.ca}", verify: true')


def certificates(directory: Path) -> Certificates:
    directory.mkdir(exist_ok=True)
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(directory / "ca.pem"))

    def written(name: str, by: trustme.CA, *identities: str, end: datetime | None = None) -> Path:
        file = directory / f"{name}.pem"
        made = by.issue_cert(*identities, common_name=name, not_after=end)
        made.private_key_and_cert_chain_pem.write_to_path(str(file))
        return file

    return Certificates(
        directory / "ca.pem",
        written("server", authority, "127.0.0.1", "nats.internal"),
        written("client", authority, "client@rebaser.test"),
        written("stranger", trustme.CA(), "stranger@rebaser.test"),
        written("expired", authority, "127.0.0.1", end=datetime.now(UTC) - timedelta(days=1)),
        written("elsewhere", authority, "nats.internal"),
    )


def new_key(kind: int) -> tuple[str, nkeys.KeyPair]:
    """A seed, and what it signs with."""
    seed = nkeys.encode_seed(os.urandom(32), kind)
    return seed.decode(), nkeys.from_seed(bytearray(seed))


@dataclass(frozen=True)
class Operator:
    """A server's configuration with an operator, and credentials of users of one account."""

    config: str
    account: nkeys.KeyPair

    @property
    def credentials(self) -> str:
        """Of a new user, that last."""
        return self.credentials_of()

    def credentials_of(self, **claims: Any) -> str:
        """Of a new user; `exp`, if given, is the second of the epoch at which they expire."""
        seed, user = new_key(nkeys.PREFIX_BYTE_USER)
        unlimited = {"subs": -1, "data": -1, "payload": -1}
        token = _jwt(self.account, user, "user", unlimited, **claims)
        return (
            f"-----BEGIN NATS USER JWT-----\n{token}\n------END NATS USER JWT------\n\n"
            f"-----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
        )


def operator(**account_limits: int | bool) -> Operator:
    """A JWT of NATS (version 2), as `nsc` makes it, with these limits of JetStream."""
    _, root = new_key(nkeys.PREFIX_BYTE_OPERATOR)
    _, account = new_key(nkeys.PREFIX_BYTE_ACCOUNT)
    _, system = new_key(nkeys.PREFIX_BYTE_ACCOUNT)
    unlimited = dict.fromkeys(("subs", "data", "payload", "imports", "exports", "conn", "leaf"), -1)
    storage = {"mem_storage": -1, "disk_storage": -1, "streams": -1, "consumer": -1}
    operator_token = _jwt(root, root, "operator", {})
    limits = {"limits": unlimited | {"wildcards": True}}
    system_token = _jwt(root, system, "account", limits)
    limits["limits"] |= storage | account_limits
    account_token = _jwt(root, account, "account", limits)
    names = account.public_key.decode(), system.public_key.decode()
    config = (
        f"operator: {operator_token}\nresolver: MEMORY\nsystem_account: {names[1]}\n"
        f"resolver_preload: {{ {names[0]}: {account_token}, {names[1]}: {system_token} }}\n"
    )
    return Operator(config, account)


def _jwt(
    issuer: nkeys.KeyPair,
    subject: nkeys.KeyPair,
    kind: str,
    claims: dict[str, Any],
    **registered: Any,
) -> str:
    body = registered | {
        "iat": 1,
        "iss": issuer.public_key.decode(),
        "sub": subject.public_key.decode(),
        "name": kind,
        "nats": {**claims, "type": kind, "version": 2},
    }
    digest = hashlib.sha256(json.dumps(body).encode()).digest()
    body["jti"] = base64.b32encode(digest).decode().rstrip("=")
    header = {"typ": "JWT", "alg": "ed25519-nkey"}
    signed = f"{_encoded(json.dumps(header).encode())}.{_encoded(json.dumps(body).encode())}"
    return f"{signed}.{_encoded(issuer.sign(signed.encode()))}"


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
