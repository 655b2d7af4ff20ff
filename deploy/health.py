"""Ask the node on this machine how it is: exit 0 if it is ready, else 1 with the reason.

It is what the HEALTHCHECK of the image runs, and needs nothing but Python. The node is found by the
variables it was started with. A secured node must show a certificate of its own CA.
"""

import os
import ssl
import sys
import urllib.error
import urllib.request
from pathlib import Path

TIMEOUT_S = 4


def health_url(environ: dict[str, str]) -> tuple[str, ssl.SSLContext | None]:
    """Return where the node tells how it is, and whom to trust there."""
    port = environ.get("WATERCLOCK_CLUSTER__HTTP_PORT", "8080")
    data = Path(environ.get("WATERCLOCK_NODE__DATA_FOLDER", "waterclock-data"))
    secure = Path(environ.get("WATERCLOCK_SECURITY__FOLDER", data / "secure"))
    if not secure.exists():
        return f"http://127.0.0.1:{port}/health/ready", None
    trusted = ssl.create_default_context(cafile=secure / "ca.pem")
    trusted.minimum_version = ssl.TLSVersion.TLSv1_3
    return f"https://localhost:{port}/health/ready", trusted


def main() -> int:
    """Ask once."""
    url, trusted = health_url(dict(os.environ))
    # Not by way of a proxy that the environment may name.
    direct = urllib.request.build_opener(
        urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=trusted)
    )
    try:
        with direct.open(url, timeout=TIMEOUT_S) as answer:
            print(answer.read().decode())
    except urllib.error.HTTPError as error:
        print(f"{url}: {error.status} {error.read().decode(errors='replace')}")
        return 1
    except OSError as error:
        print(f"{url}: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
