"""Certificates for tests: a CA, a host's and a client's, as files."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from waterclock.security.certificates import KeyPair, make_ca, make_node_certificate


@dataclass(frozen=True)
class Files:
    """Paths of a certificate, its key and the CA."""

    certificate: Path
    key: Path
    ca: Path

    def settings(self) -> dict[str, Any]:
        """Return them as settings of a dispatcher or a worker."""
        return {"certificate": str(self.certificate), "key": str(self.key), "ca": str(self.ca)}


def certificates(folder: Path) -> Files:
    """Make a CA of its own and a certificate for loopback."""
    folder.mkdir(parents=True, exist_ok=True)
    now_ms = time.time_ns() // 1_000_000
    ca = make_ca("tests", now_ms=now_ms)
    pair: KeyPair = make_node_certificate(ca, ["127.0.0.1", "localhost"], now_ms=now_ms)
    files = Files(folder / "host.pem", folder / "host.key", folder / "ca.pem")
    files.certificate.write_bytes(pair.certificate_pem)
    files.key.write_bytes(pair.key_pem)
    files.ca.write_bytes(ca.certificate_pem)
    return files
