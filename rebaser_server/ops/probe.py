"""`python -m rebaser_server.ops.probe`: checks the health of the daemon in the same container.

Exit code 0: healthy. 1: not, with the reason on stderr.
"""

import os
import ssl
import sys
from contextlib import suppress
from ipaddress import ip_address
from typing import Final
from urllib.request import HTTPSHandler, ProxyHandler, build_opener

from rebaser_server.ops.endpoint import DEFAULT_PORT
from rebaser_server.settings.settings import Settings, service_variables
from rebaser_server.terminal import lines

_TIMEOUT: Final = 4.0  # seconds
_LOOPBACK: Final = "127.0.0.1"


def main() -> int:
    for name in service_variables(os.environ):
        del os.environ[name]
    ops = Settings().ops
    if not ops.enabled:
        return 0
    context = None
    if ops.certificate is not None:  # the daemon's own; it names a host, not this address
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    scheme, address = "https" if context else "http", _address(ops.host)
    url = f"{scheme}://{address}:{ops.port or DEFAULT_PORT}/healthz"
    direct = ProxyHandler({})  # a proxy of the environment reaches other machines, not this one
    try:
        with build_opener(direct, HTTPSHandler(context=context)).open(url, timeout=_TIMEOUT):
            return 0
    except OSError as error:  # an HTTP error is an OSError, too
        lines.complain(f"{url}: {error}")
        return 1


def _address(host: str) -> str:
    """Address at which a daemon in this container answers that listens on `host`."""
    with suppress(ValueError):  # a name
        if ip_address(host).is_unspecified:
            return _LOOPBACK
    return host or _LOOPBACK


if __name__ == "__main__":
    sys.exit(main())
