"""A cluster moves slots while messages flow: those of the lock, of the source and of the output."""

import json
from typing import Any

import redis

from tests.dispatch.programs import fleet, wait
from tests.dispatch.redis_servers import RedisServer, cluster
from tests.dispatch.traffic import numbers, ready
from waterclock.dispatch.redis.keys import slot_of

HANDLERS = "tests.dispatch.work_handlers"
EACH = 300


def move(nodes: list[RedisServer], slot: int, between: Any) -> None:
    """Move a slot to the next master, key by key; `between` is called while it is half-way."""
    clients = [node.client() for node in nodes]
    ids = [client.execute_command("CLUSTER MYID").decode() for client in clients]
    said: Any = clients[0].execute_command("CLUSTER SLOTS")
    (port,) = {master[1] for first, last, master, *_ in said if first <= slot <= last}
    here = next(at for at, node in enumerate(nodes) if node.port == port)
    there = (here + 1) % len(nodes)
    source, target = clients[here], clients[there]
    target.execute_command("CLUSTER SETSLOT", slot, "IMPORTING", ids[here])
    source.execute_command("CLUSTER SETSLOT", slot, "MIGRATING", ids[there])
    between()
    while keys := source.execute_command("CLUSTER GETKEYSINSLOT", slot, 1):
        source.execute_command(
            "MIGRATE", "127.0.0.1", nodes[there].port, "", 0, 5_000, "KEYS", *keys
        )
        between()
    for client in (target, source, *clients):
        client.execute_command("CLUSTER SETSLOT", slot, "NODE", ids[there])
    for client in clients:
        client.close()


def test_slots_that_move_lose_nothing_and_write_nothing_twice(tmp_path):
    with cluster(tmp_path / "redis") as nodes:
        config = {"redis": [node.address for node in nodes], "output": "out", "source": "in"}
        with fleet(tmp_path / "programs", **config) as programs:
            dispatcher = programs.start("dispatcher", deliveries_max=1_000)
            for _ in range(2):
                programs.start("worker", handler=f"{HANDLERS}:copy")
            ready(dispatcher, workers=2)
            sent = 0
            with redis.RedisCluster(host="127.0.0.1", port=nodes[0].port) as client:

                def send() -> None:
                    nonlocal sent
                    for n in range(sent, sent + EACH):
                        client.xadd("in", {"data": json.dumps({"n": n})})
                    sent += EACH

                for key in ("out", "in", "{waterclock}:lock"):
                    send()
                    move(nodes, slot_of(key), send)
                    send()
                wait(lambda: len(numbers(client, "out")) >= sent, what=f"{sent} entries")
                wait(lambda: not client.xpending("in", "waterclock")["pending"], what="no rest")
                assert sorted(numbers(client, "out")) == list(range(sent))
                assert client.xlen("{in}:dead") == 0
