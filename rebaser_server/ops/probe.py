"""`python -m rebaser_server.ops.probe`: checks the health of the daemon in the same container.

Exit code 0: healthy. 1: not, with the reason on stderr.
"""

import os
import ssl
import sys
import urllib.request
from typing import Final

from rebaser_server.ops.endpoint import DEFAULT_PORT
from rebaser_server.settings.renamed_variables import rename_variables
from rebaser_server.settings.settings import Settings
from rebaser_server.terminal import lines

_TIMEOUT: Final = 4.0  # seconds
_EVERYWHERE: Final = ("", "0.0.0.0", "::")  # noqa: S104 - the daemon listens there; the probe connects to loopback


def main() -> int:
    rename_variables(os.environ)  # the daemon itself logs the warnings
    ops = Settings().ops
    if not ops.enabled:
        return 0
    host = "127.0.0.1" if ops.host in _EVERYWHERE else ops.host
    context = None
    if ops.certificate is not None:  # the daemon's own; it names a host, not this address
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    url = f"{'https' if context else 'http'}://{host}:{ops.port or DEFAULT_PORT}/healthz"
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT, context=context):  # noqa: S310
            return 0
    except OSError as error:  # an HTTP error is an OSError, too
        lines.complain(f"{url}: {error}")
        return 1


if __name__ == "__main__":
    sys.exit(main())
