"""How many processes there are, when they are started again, and which are refused."""

import asyncio
import os
import socket
from contextlib import closing
from pathlib import Path
from signal import SIGHUP, SIGTERM
from typing import Any, NoReturn

import pytest

from waterclock.cli.commands.cluster.children import Child, hanging_up
from waterclock.cli.commands.cluster.processes import lines_of
from waterclock.cli.commands.processes.placement import begin_run, check_none_is_missed
from waterclock.cli.commands.processes.plan import (
    SharedPorts,
    check_alone,
    command,
    count_of,
    plan,
    shared_ports,
)
from waterclock.cli.commands.processes.restarts import DELAYS_S, WELL_S, Restarts
from waterclock.cli.commands.processes.supervisor import ProcessGroup, run_processes
from waterclock.cluster.coordinator.records import (
    DrainRecord,
    Keys,
    PartitionRecord,
    encode_record,
)
from waterclock.cluster.coordinator.requests import Put, Txn
from waterclock.cluster.coordinator.store import Store
from waterclock.model.config import Config, load_config
from waterclock.model.errors import BadConfig, BadInput
from waterclock.runtime import supervisor
from waterclock.server.cluster.processes.journal import Journal
from waterclock.server.cluster.processes.metrics import merged

KEYS = Keys("waterclock")


def config_of(**flags: Any) -> Config:
    named = {name.replace("__", "."): value for name, value in flags.items()}
    return load_config(yaml_text="", environ={}, flags=named)


def store_of(*replicas: str) -> Store:
    store = Store()
    for number, replica in enumerate(replicas):
        record = PartitionRecord(epoch=0, state="vacant", replicas=(f"{replica}:d",))
        store.write(Txn((), (Put(KEYS.partition(bytes([number]) * 16), encode_record(record)),)))
    return store


def test_auto_is_a_process_on_each_core_that_may_be_used():
    assert count_of("auto") == len(os.sched_getaffinity(0))
    assert count_of("3") == 3


@pytest.mark.parametrize("wanted", ["0", "-1", "65", "many", "1.5", "", "²"])
def test_other_numbers_of_processes_are_refused(wanted):
    with pytest.raises(BadInput, match="a number from 1 to 64, or auto"):
        count_of(wanted)


@pytest.mark.parametrize(
    "setting", [{"cluster__etcd": "h:2379"}, {"cluster__bootstrap_nodes": "h:7946"}]
)
def test_nodes_elsewhere_are_refused(setting):
    with pytest.raises(BadConfig, match="names nodes elsewhere, and --processes is for one"):
        check_alone(config_of(**setting))


def test_each_process_has_a_folder_of_its_own_the_first_the_data_folder(held):
    config = config_of(node__data_folder="/data")
    processes = plan(config, 3, held)

    data = [str(each.data) for each in processes]
    assert data == ["/data", "/data/processes/2", "/data/processes/3"]
    assert [each.name for each in processes] == ["process-1", "process-2", "process-3"]
    ports = SharedPorts(9000, 8080)
    words = command(processes[1], processes, ports, ["--insecure"], Path("/secure"), 17)
    assert "cluster.coordinator_fd=17" in words
    assert "topics.replication_factor=1" in words
    assert "security.folder=/secure" in words


def test_ports_are_held_against_others_and_given_to_processes():
    config = config_of(cluster__grpc_port=0, cluster__http_port=0)
    with shared_ports(config) as ports:
        with closing(socket.socket()) as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", ports.http))
        with closing(socket.socket()) as process:
            process.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            process.bind(("127.0.0.1", ports.http))
            process.listen()
            taken = config_of(cluster__grpc_port=0, cluster__http_port=ports.http)
            with pytest.raises(BadConfig, match="cannot listen"), shared_ports(taken):
                pass


def test_ports_of_gossip_are_held_while_the_processes_run(tmp_path, monkeypatch):
    drawn: list[str] = []

    async def run(group: ProcessGroup, journal: Journal) -> None:
        drawn.extend(each.process.gossip for each in group._children)
        for address in drawn:
            with closing(socket.socket()) as other, pytest.raises(OSError, match="in use"):
                other.bind(("127.0.0.1", int(address.rpartition(":")[2])))

    monkeypatch.setattr(ProcessGroup, "run", run)
    config = config_of(node__data_folder=str(tmp_path), cluster__grpc_port=0, cluster__http_port=0)
    run_processes(config, 2, [], as_json=True)

    assert len(drawn) == 2


def test_a_process_is_started_again_at_once_then_later_then_not():
    restarts = Restarts()
    assert [restarts.ended(ready_s=0) for _ in range(9)] == [*DELAYS_S, None]


def test_a_process_that_ran_well_is_started_again_at_once():
    restarts = Restarts()
    for _ in DELAYS_S:
        restarts.ended(ready_s=1)
    assert restarts.ended(ready_s=WELL_S) == 0


def test_fewer_processes_are_refused_while_the_others_have_partitions():
    store = store_of("process-1", "process-2", "process-3", "process-3")

    check_none_is_missed(store, "waterclock", 3)
    with pytest.raises(BadConfig, match=r"process-2 process-3 have 3 partitions\. Start 3, run"):
        check_none_is_missed(store, "waterclock", 1)


def test_a_run_begins_without_leases_and_without_drains_of_those_that_are_gone():
    store = store_of("process-1")
    lease = store.grant(60, now_ms=0).lease
    drain = encode_record(DrainRecord(since_ms=1))
    drains = tuple(Put(KEYS.drain(f"process-{number}"), drain) for number in (2, 3))
    store.write(Txn((), (Put(KEYS.node("process-3"), b"", lease), *drains)))

    begin_run(store, "waterclock", 2)

    assert store.read(KEYS.nodes).items == ()
    assert [each.key for each in store.read(KEYS.drains).items] == [KEYS.drain("process-2")]
    assert len(store.read(KEYS.partitions).items) == 1


def test_metrics_of_processes_are_one_text_in_which_each_family_is_once():
    head = b"# HELP %b Words.\n# TYPE %b counter\n"
    one = head % (b"a", b"a") + b"a 1.0\n" + head % (b"b", b"b") + b'b{x="y {"} 2.0\nb{x="z"} 3.0\n'
    two = head % (b"a", b"a") + b"a 4.0\n"

    assert merged({"p1": one, "p2": two}) == (
        head % (b"a", b"a")
        + b'a{process="p1"} 1.0\na{process="p2"} 4.0\n'
        + head % (b"b", b"b")
        + b'b{process="p1",x="y {"} 2.0\nb{process="p1",x="z"} 3.0\n'
    )


class Heard(Child):
    """A process that notes its signals."""

    def __init__(self) -> None:
        super().__init__("node", "red")
        self.signals: list[int] = []

    def signal(self, number: int) -> None:
        self.signals.append(number)


class Ended(Exception):
    """The command has."""


def test_a_process_that_starts_reads_its_settings_again_once_it_is_ready():
    first, second = children = [Heard(), Heard()]
    first.became_ready({"pid": 1})
    hanging_up(children)()
    assert (first.signals, second.signals) == ([SIGHUP], [])

    second.became_ready({"pid": 2})
    second.became_ready({"pid": 3})

    assert second.signals == [SIGHUP]


def test_the_supervisor_hears_of_settings_read_again_only_once_all_have_begun(monkeypatch):
    heard: list[str] = []
    monkeypatch.setattr(supervisor, "tell_reloading", lambda: heard.append("reloading"))
    monkeypatch.setattr(supervisor, "tell_ready", lambda: heard.append("ready"))
    first, second = children = [Heard(), Heard()]
    first.became_ready({"pid": 1})
    hanging_up(children)()
    assert heard == []

    second.became_ready({"pid": 2})
    hanging_up(children)()
    assert heard == ["reloading", "ready"]


def test_who_closes_the_window_of_processes_ends_them(monkeypatch):
    def ended(code: int) -> NoReturn:
        raise Ended(code)

    monkeypatch.setattr(os, "_exit", ended)
    monkeypatch.setattr(os, "isatty", lambda number: True)
    children = [Heard(), Heard()]
    hung_up = hanging_up(children)
    monkeypatch.setattr(os, "isatty", lambda number: False)

    with pytest.raises(Ended, match="129"):
        hung_up()

    assert [each.signals for each in children] == [[SIGTERM], [SIGTERM]]


async def test_a_line_that_is_too_long_is_left_out_and_ends_nothing():
    stream = asyncio.StreamReader(limit=10)
    stream.feed_data(b"one\n" + b"x" * 30 + b"\ntwo\n")
    stream.feed_eof()

    shown = [line async for line in lines_of(stream)]

    assert shown == [b"one\n", b"(a line is too long to be shown)\n", b"two\n"]
