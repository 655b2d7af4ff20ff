"""A node on the network: the gRPC and HTTP APIs, metrics, and a node as a process.

gRPC reads its variables when it is loaded, and a node's port is to take TLS 1.3 only, for which
gRPC has no setting. So it is given a suite of TLS 1.2 that needs keys nobody has, before it is
loaded; the suites of TLS 1.3 are not of that list.
"""

import os
import sys

CIPHERS_VARIABLE = "GRPC_SSL_CIPHER_SUITES"
_NO_TLS_12 = "ECDHE-PSK-CHACHA20-POLY1305"

_is_in_time = os.environ.get(CIPHERS_VARIABLE) == _NO_TLS_12 or "grpc" not in sys.modules
os.environ[CIPHERS_VARIABLE] = _NO_TLS_12


def is_tls_13_only() -> bool:
    """Say if gRPC was loaded after that."""
    return _is_in_time
