"""Cassandra 5, one node with a small heap, its archives from Maven.

What the distribution's scripts and files would say is said here: which parts of Java it may reach
into, and a configuration for a single node on the loopback. It speaks TLS to those who ask for it.
"""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    load_pem_private_key,
)
from cryptography.hazmat.primitives.serialization.pkcs12 import (
    PKCS12PrivateKeyTypes,
    serialize_key_and_certificates,
)
from cryptography.x509 import load_pem_x509_certificates

from benchmarks.peers.cache import Absent, maven
from benchmarks.peers.server import free_port, started
from tests.dispatch.certificates import Files, certificates
from tests.stores.backend import Backend, numbered
from tests.stores.servers.restarting import Restarting, restarting

GROUP, ARTIFACT, VERSION = "org.apache.cassandra", "cassandra-all", "5.0.6"
MAIN = "org.apache.cassandra.service.CassandraDaemon"
HEAP_MB = 512
KEYSTORE, PASSWORD = "keystore.p12", "changeit"

EXPORTS = [
    "java.base/java.lang.ref",
    "java.base/jdk.internal.misc",
    "java.management.rmi/com.sun.jmx.remote.internal.rmi",
    "java.rmi/sun.rmi.registry",
    "java.rmi/sun.rmi.server",
    "java.sql/java.sql",
    "jdk.unsupported/sun.misc",
    "jdk.attach/sun.tools.attach",
]
OPENS = [
    "java.base/java.io",
    "java.base/java.lang",
    "java.base/java.lang.module",
    "java.base/java.lang.reflect",
    "java.base/java.nio",
    "java.base/java.util",
    "java.base/jdk.internal.loader",
    "java.base/jdk.internal.math",
    "java.base/jdk.internal.module",
    "java.base/jdk.internal.ref",
    "java.base/jdk.internal.reflect",
    "java.base/jdk.internal.util.jar",
    "java.base/sun.nio.ch",
    "jdk.management/com.sun.management.internal",
]
# There is nobody to wait for.
ALONE = {
    "cassandra.ring_delay_ms": "0",
    "cassandra.skip_wait_for_gossip_to_settle": "0",
    "cassandra.superuser_setup_delay_ms": "0",
    "cassandra.initial_token": "0",
}
LOGGING = """<configuration><appender name="out" class="ch.qos.logback.core.ConsoleAppender">
<encoder><pattern>%level %logger{0} %msg%n</pattern></encoder></appender>
<root level="WARN"><appender-ref ref="out"/></root></configuration>
"""


@contextmanager
def running(folder: Path) -> Iterator[Backend]:
    """Run a server."""
    java = shutil.which("java")
    if java is None:
        raise Absent("there is no Java to run Cassandra with")
    jars, port = maven(GROUP, ARTIFACT, VERSION), free_port()
    tls = certificates(folder / "tls")
    (folder / KEYSTORE).write_bytes(_keystore(tls))
    command = [java, *_flags(folder, jars, port), "-cp", f"{jars}/*", MAIN]

    def run() -> Any:
        return started(command, folder=folder, port=port)

    with restarting(Restarting(run)) as server:
        urls = numbered(f"cassandra://127.0.0.1:{port}/streams_{{}}?replication=1")
        yield Backend(
            name="cassandra", fresh_url=lambda: next(urls), server=server, tls=tls, paged=5_000,
            batch=500,
        )  # fmt: skip


def _keystore(files: Files) -> bytes:
    """Return a certificate and its key as Java reads them."""
    key = load_pem_private_key(files.key.read_bytes(), None)
    leaf, *others = load_pem_x509_certificates(files.certificate.read_bytes())
    return serialize_key_and_certificates(
        b"node",
        cast("PKCS12PrivateKeyTypes", key),
        leaf,
        others,
        BestAvailableEncryption(PASSWORD.encode()),
    )


def _flags(folder: Path, jars: Path, port: int) -> list[str]:
    settings, logging = folder / "cassandra.yaml", folder / "logback.xml"
    # Every JSON is YAML.
    settings.write_text(json.dumps(_settings(folder, port), indent=1))
    logging.write_text(LOGGING)
    properties = {
        **ALONE,
        "cassandra.config": settings.as_uri(),
        "cassandra.storagedir": str(folder),
        "cassandra-foreground": "yes",
        "logback.configurationFile": str(logging),
        "jdk.attach.allowAttachSelf": "true",
        "io.netty.tryReflectionSetAccessible": "true",
        "java.io.tmpdir": str(folder),
    }
    (agent,) = jars.glob("jamm-*.jar")
    return [
        f"-Xms{HEAP_MB}m", f"-Xmx{HEAP_MB}m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
        f"-javaagent:{agent}",
        *(f"--add-exports={name}=ALL-UNNAMED" for name in EXPORTS),
        *(f"--add-opens={name}=ALL-UNNAMED" for name in OPENS),
        *(f"-D{name}={value}" for name, value in properties.items()),
    ]  # fmt: skip


def _settings(folder: Path, port: int) -> dict[str, Any]:
    storage_port = free_port()
    seeds = [{"seeds": f"127.0.0.1:{storage_port}"}]
    names = ["commitlog", "saved_caches", "hints", "cdc_raw"]
    return {
        **{f"{name}_directory": str(folder / name) for name in names},
        "cluster_name": "streams",
        "partitioner": "org.apache.cassandra.dht.Murmur3Partitioner",
        "endpoint_snitch": "SimpleSnitch",
        "num_tokens": 1,
        "listen_address": "127.0.0.1",
        "rpc_address": "127.0.0.1",
        "storage_port": storage_port,
        "ssl_storage_port": free_port(),
        "native_transport_port": port,
        "seed_provider": [
            {"class_name": "org.apache.cassandra.locator.SimpleSeedProvider", "parameters": seeds}
        ],
        "data_file_directories": [str(folder / "data")],
        "client_encryption_options": {
            "enabled": True,
            "optional": True,
            "keystore": str(folder / KEYSTORE),
            "keystore_password": PASSWORD,
            "store_type": "PKCS12",
        },
        # Acknowledged is on the disk.
        "commitlog_sync": "batch",
        "commitlog_segment_size": "32MiB",
        "commitlog_total_space": "256MiB",
        "auto_snapshot": False,
        "memtable_heap_space": "96MiB",
        "memtable_offheap_space": "96MiB",
        "memtable_allocation_type": "offheap_objects",
        "concurrent_compactors": 1,
        # The machine may be busy with other tests.
        "read_request_timeout": "15s",
        "write_request_timeout": "15s",
        "range_request_timeout": "15s",
        "cas_contention_timeout": "10s",
        "request_timeout": "15s",
    }
