"""From the configuration to a replicator that runs."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from waterclock.cluster.coordinator.coordinator import Coordinator
from waterclock.cluster.coordinator.records import Keys, NodeRecord
from waterclock.cluster.node_tags import LEVEL
from waterclock.model.clock import Clock
from waterclock.model.config import Config
from waterclock.model.errors import BadConfig
from waterclock.server.addresses import address_of
from waterclock.server.cluster.cluster import Cluster
from waterclock.server.cluster.etcd.coordinator import EtcdCoordinator
from waterclock.server.cluster.etcd.members import EtcdSettings
from waterclock.server.cluster.processes.coordinator import ProcessCoordinator, inherited
from waterclock.server.cluster.replication.node_replication import NodeReplication
from waterclock.server.cluster.replication.orders import Orders
from waterclock.server.cluster.replication.own_records import own_records, put_aside
from waterclock.server.cluster.replication.replicator import Replicator, ReplicatorSettings
from waterclock.server.cluster.replication.start_watch import say_waits
from waterclock.storage.promises import open_promises


@asynccontextmanager
async def replicating(
    config: Config, clock: Clock, cluster: Cluster, name: str, ip: str
) -> AsyncIterator[NodeReplication]:
    """Replicate the partitions of a node until left; its peers must listen by now.

    `NodeReplication.stop` ends it before the logs are closed.
    """
    settings, folder = config.cluster, Path(config.node.data_folder)
    own = await asyncio.to_thread(own_records, folder, now_ms=clock.now_ms())
    if own is not None and not (own.logs or own.was_shared or own.has_streams):
        put_aside(folder)
        own = None
    async with AsyncExitStack() as stack:
        promises = open_promises(folder)
        stack.callback(promises.close)
        coordinator = await stack.enter_async_context(_coordinator(config))
        gossip = address_of(ip, settings.gossip_port) if settings.gossip_port else ""
        record = NodeRecord(
            peer=address_of(ip, cluster.peers.address[1]),
            zone=settings.zone or "",
            disk=promises.disk_id,
            gossip=gossip,
            level=LEVEL,
        )
        replicator = Replicator(
            name,
            record,
            coordinator=coordinator,
            keys=Keys(settings.name),
            peers=cluster.peers,
            promises=promises,
            settings=ReplicatorSettings(
                lease_ms=settings.lease_ms,
                replace_after_ms=settings.replace_after_ms,
                catch_up_bytes=settings.catch_up_bytes,
                factor=config.topics.replication_factor,
                expect=settings.expect,
                own_meta_log=None if own is None else own.meta_log,
                own_logs=() if own is None else own.logs,
            ),
            clock=clock,
        )
        cluster.replicator = replicator
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        running = tasks.create_task(replicator.run())
        saying = tasks.create_task(say_waits(replicator, coordinator_name(config)))
        replication = NodeReplication(replicator, cluster.peers, running)
        cluster.places, cluster.replication = replication.places, replication
        cluster.orders = Orders(replicator)
        try:
            yield replication
        finally:
            saying.cancel()
            await replication.stop()


@asynccontextmanager
async def _coordinator(config: Config) -> AsyncIterator[Coordinator]:
    """Have the coordinator asked while inside: etcd, or whoever runs this process."""
    descriptor = config.cluster.coordinator_fd
    coordinator = (
        EtcdCoordinator(etcd_settings(config))
        if descriptor is None
        else ProcessCoordinator(inherited(descriptor))
    )
    try:
        yield coordinator
    finally:
        await coordinator.close()


def coordinator_name(config: Config) -> str:
    """Return what the coordinator is called by people."""
    if config.cluster.is_process:
        return "the process that runs this one"
    return f"etcd at {', '.join(config.cluster.etcd)}"


def etcd_settings(config: Config) -> EtcdSettings:
    """Return how etcd is reached. Raises BadConfig if a file cannot be read."""
    settings = config.cluster
    return EtcdSettings(
        endpoints=tuple(each.rpartition("//")[2] for each in settings.etcd),
        user=settings.etcd_user or "",
        password=_read("etcd_password_file", settings.etcd_password_file).decode().strip("\n"),
        ca_pem=_read("etcd_ca", settings.etcd_ca),
        certificate_pem=_read("etcd_certificate", settings.etcd_certificate),
        key_pem=_read("etcd_key", settings.etcd_key),
    )


def _read(setting: str, path: str | None) -> bytes:
    if path is None:
        return b""
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise BadConfig(f"cluster.{setting}", f"{path} cannot be read: {error.strerror}") from error
