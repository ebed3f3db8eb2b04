"""What is shown of the settings has no secret in it, wherever that stands."""

import pytest
from pydantic import ValidationError

from rebaser_server.settings.redaction import redact_text, redact_url
from rebaser_server.settings.settings import Settings

SECRET = "hush-hush"

MALFORMED = [
    f"tls://me:{SECRET}@a.test:4222,nats://{SECRET}@b.test",
    f"nats://me:p,{SECRET}@a.test:4222",
    f"nats://me:a://{SECRET}@a.test",
    f"nats://me:{SECRET},p@a.test",
]
"""URLs of NATS that are refused: secrets differ, or have characters that are not escaped."""

HOLDING = [
    {"nats": {"url": f"me:{SECRET}@a.test:4222"}},
    {"nats": {"url": f"tls://me:{SECRET}@a.test:4222,nats://me:{SECRET}@b.test"}},
    {"nats": {"user": "me", "password": SECRET}},
    {"nats": {"token": SECRET}},
    {"ops": {"token": SECRET}},
    {"store": {"root": "s3://here", "options": {"AWS_SECRET_ACCESS_KEY": SECRET}}},
    {"store": {"options": {"azure_storage_sas_key": SECRET}}},
    {"store": {"options": {"endpoint": f"https://me:{SECRET}@store.test"}}},
    {"spark": {"master": f"sc://spark.test:15002/;use_ssl=true;token={SECRET}"}},
    {"spark": {"conf": {"spark.hadoop.fs.s3a.secret.key": SECRET}}},
    {"spark": {"conf": {"spark.ssl.keyPassword": SECRET}}},
    {"spark": {"conf": {"spark.driver.extraJavaOptions": f"-Xss1m -Djavax.net.passwd={SECRET}"}}},
    {"store": {"options": {"endpoint": f"https://store.test/c?sv=1&sig={SECRET}"}}},
]


@pytest.mark.parametrize("held", HOLDING)
def test_no_secret_is_shown(held: dict) -> None:
    settings = Settings.model_validate(held)

    assert SECRET not in settings.model_dump_json()


@pytest.mark.parametrize("url", MALFORMED)
def test_a_url_that_is_refused_is_not_shown(url: str) -> None:
    with pytest.raises(ValidationError) as refused:
        Settings.model_validate({"nats": {"url": url}})

    assert SECRET not in str(refused.value)
    assert SECRET not in redact_url(url)


def test_settings_that_are_not_secret_are_shown() -> None:
    options = {"region": "eu-west-1", "endpoint": "https://store.test:9000"}
    remote = "sc://spark.test:15002/;use_ssl=true;user_id=me"
    shown = Settings.model_validate({"store": {"options": options}, "spark": {"master": remote}})

    text = shown.model_dump_json()

    assert all(value in text for value in (*options.values(), remote))


def test_what_is_in_force_is_not_what_is_shown() -> None:
    settings = Settings.model_validate({"nats": {"url": "nats://me:hush@a.test"}})

    assert settings.nats.url == "nats://me:hush@a.test"


@pytest.mark.parametrize("url", ["127.0.0.1:4222", "nats://a:1,nats://b:2", "/some/where", ""])
def test_a_url_without_secrets_stays_as_it_is(url: str) -> None:
    assert redact_url(url) == url


def test_a_text_has_no_secret_of_a_url() -> None:
    text = f"no answer of nats://me:{SECRET}@a.test, http://b.test/?sig={SECRET}&sv=1 'here'"

    shown = redact_text(text)

    assert SECRET not in shown
    assert "@a.test, http://b.test/?sig=" in shown
    assert shown.endswith("&sv=1 'here'")
