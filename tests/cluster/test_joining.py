"""Real nodes on loopback find each other, share streams, leave, and are missed."""

import asyncio
import errno
import signal
from functools import partial

import pytest

from tests.cluster.joined import JoinedNode, agreed, config_of, joined_node, node_process, until
from waterclock.model.errors import BadConfig
from waterclock.model.sections import ServerConfig
from waterclock.server.cluster import starting

TEST_S = 60


def is_alone_with(node: JoinedNode, other: str) -> bool:
    return node.ring == (node.name, other) and node.clustered.cluster.peers.linked == [other]


async def test_three_nodes_form_a_ring_and_any_of_them_answers_for_all_streams(tmp_path):
    async with (
        asyncio.timeout(TEST_S),
        joined_node(tmp_path, "a") as a,
        joined_node(tmp_path, "b", a) as b,
        joined_node(tmp_path, "c", a) as c,
    ):
        await agreed(a, b, c)
        for owner in (a, b, c):
            stream = a.stream_of(owner.name)
            sent = await a.send(stream, owner.name)
            got = await b.receive(stream)
            assert (sent.status, got.status) == (200, 200)
            assert got.json()["message"] == owner.name
            on = await c.receive(stream, f"resumeToken={got.json()['resumeToken']}&timeout=0s")
            assert on.status == 424  # the token is good everywhere, and nothing follows

        shown = {each.name: (each.state, each.is_linked) for each in b.membership.members()}
        assert shown == {"a": ("alive", True), "b": ("alive", False), "c": ("alive", True)}
        ready = await c.get("/health/ready")
        assert (ready.status, ready.json()["members"]) == (200, 3)

        kept = [a.stream_of(owner.name) for owner in (a, b, c)]
        for stream in kept:
            await b.send(stream, "kept")
        await c.clustered.leave()
        assert not len(c.node.streams.table)
        for stream in kept:
            assert (await c.receive(stream, "timeout=0s")).json()["message"] == "kept"
        await until(lambda: ("left", "c") in a.seen() and ("left", "c") in b.seen())
        assert a.ring == b.ring == ("a", "b")
        # Streams that were its own are those of the others now, also if it is asked.
        assert (await c.send("late", 1)).status == 200
        assert "failed" not in {kind for kind, _ in a.seen() + b.seen()}


async def test_any_node_tells_what_another_one_did(tmp_path):
    async with (
        asyncio.timeout(TEST_S),
        joined_node(tmp_path, "a") as a,
        joined_node(tmp_path, "b", a) as b,
    ):
        await agreed(a, b)
        shown = await a.get("/history?node=b")
        missing = await a.get("/history?node=b&topic=nowhere")
        nobody = await a.get("/history?node=nobody")

    assert (shown.status, shown.json()["unreachable"]) == (200, [])
    assert (missing.status, nobody.status) == (404, 404)
    assert "'nowhere'" in missing.json()["detail"]


async def test_nodes_that_all_leave_at_once_do_not_wait_to_hand_over_to_each_other(tmp_path):
    for_long = ServerConfig(drain_ms=600_000)
    async with (
        asyncio.timeout(TEST_S),
        joined_node(tmp_path, "a", server=for_long) as a,
        joined_node(tmp_path, "b", a, server=for_long) as b,
        joined_node(tmp_path, "c", a, server=for_long) as c,
        joined_node(tmp_path, "d", a, server=for_long) as d,
    ):
        nodes = (a, b, c, d)
        await agreed(*nodes)

        await asyncio.gather(*(node.clustered.leave() for node in nodes))

        assert not any(node.membership.is_anyone_up() for node in nodes)


async def test_a_node_that_comes_answers_for_streams_once_it_knows_the_others(tmp_path):
    async with asyncio.timeout(TEST_S), joined_node(tmp_path, "a") as a:
        sent = await a.send("s", 1)
        got = await a.receive("s")
        assert (sent.status, got.status) == (200, 200)
        token = got.json()["resumeToken"]
        await a.send("s", 2)

        async with joined_node(tmp_path, "b", a) as b:
            assert b.ring == ("a", "b")
            on = await b.receive("s", f"resumeToken={token}")

            # Had it begun the stream anew, it would know no such position.
            assert (on.status, on.json().get("message")) == (200, 2)


async def test_requests_wait_while_a_node_joins(tmp_path):
    async with asyncio.timeout(TEST_S), joined_node(tmp_path, "a") as a:
        ownership = a.clustered.cluster.ownership
        ownership.is_joining = True
        waiting = asyncio.ensure_future(a.send("s", 1))
        assert (await a.get("/streams/receive?streamId=s&timeout=0s")).status == 424
        assert not waiting.done()

        ownership.is_joining = False
        assert (await waiting).status == 200


async def test_a_killed_process_is_known_by_its_link_and_a_stopped_one_says_goodbye(tmp_path):
    async with asyncio.timeout(TEST_S), joined_node(tmp_path, "a") as a:
        for name in ("b", "c"):
            with node_process(tmp_path, name, a) as process:
                await until(partial(is_alone_with, a, name))
                if name == "b":
                    process.kill()
                    await until(lambda: ("failed", "b") in a.seen())
                else:
                    process.send_signal(signal.SIGTERM)
                    await until(lambda: ("left", "c") in a.seen())
                    assert await asyncio.to_thread(process.wait) == 0
            assert a.ring == ("a",)

        happened = [kind for kind, name in a.seen() if name == "b"]
        assert happened[-3:] == ["unlinked", "gone", "failed"]
        assert ("failed", "c") not in a.seen()


async def test_a_node_of_another_cluster_is_turned_away(tmp_path):
    async with (
        asyncio.timeout(TEST_S),
        joined_node(tmp_path, "a") as a,
        joined_node(tmp_path, "b", a, cluster={"name": "another"}) as b,
    ):
        await until(lambda: ("refused", "b") in a.seen() and ("refused", "a") in b.seen())

        why = next(each.detail for each in a.membership.events if each.kind == "refused")
        assert why == "it is of cluster 'another', and this node of 'waterclock'"
        assert (a.ring, b.ring) == (("a",), ("b",))
        assert a.clustered.cluster.peers.linked == []


async def test_seeds_and_the_zone_change_while_a_node_runs(tmp_path):
    async with (
        asyncio.timeout(TEST_S),
        joined_node(tmp_path, "a") as a,
        joined_node(tmp_path, "b") as b,
    ):
        config = config_of(tmp_path, "b", a.seed, cluster={"zone": "east"})
        b.clustered.configure(config)
        await agreed(a, b)

        await until(lambda: {"", "east"} == {each.zone for each in a.membership.members()})


async def test_a_port_that_is_taken_is_named(tmp_path):
    async with asyncio.timeout(TEST_S), joined_node(tmp_path, "a") as a:
        taken = {
            "gossip_port": a.membership.agent.address[1],
            "peer_port": a.clustered.cluster.peers.address[1],
        }
        for name, port in taken.items():
            with pytest.raises(BadConfig, match=rf"cluster\.{name}: cannot listen on 127.0.0.1"):
                async with joined_node(tmp_path, "b", cluster={name: port}):
                    pass


async def test_a_host_that_is_none_cannot_be_advertised(tmp_path):
    with pytest.raises(BadConfig, match=r"cluster\.advertise: 'no host' is no host"):
        async with joined_node(tmp_path, "a", cluster={"advertise": "no host"}):
            pass


async def test_a_machine_without_a_route_out_must_say_how_it_is_reached(tmp_path, monkeypatch):
    def unreachable(family: int) -> str:
        raise OSError(errno.ENETUNREACH, "Network is unreachable")

    monkeypatch.setattr(starting, "route_out", unreachable)
    with pytest.raises(BadConfig, match=r"cluster\.advertise: .* \(Network is unreachable\)"):
        async with joined_node(tmp_path, "a", server=ServerConfig(host="0.0.0.0")):
            pass


@pytest.mark.parametrize("host", ["::1", "localhost"])
async def test_nodes_meet_wherever_they_listen(tmp_path, host):
    server = ServerConfig(host=host)
    async with (
        asyncio.timeout(TEST_S),
        joined_node(tmp_path, "a", server=server) as a,
        joined_node(tmp_path, "b", a, server=server) as b,
    ):
        await agreed(a, b)


async def test_a_node_is_advertised_by_its_name_and_linked_by_its_address(tmp_path):
    async with joined_node(tmp_path, "a", cluster={"advertise": "localhost"}) as a:
        (shown,) = a.membership.members()

    assert shown.http.startswith("http://localhost:")
    assert shown.peer.startswith("127.0.0.1:")
    assert shown.address.startswith("127.0.0.1:")


async def test_a_node_that_leaves_waits_for_others_no_longer_than_it_may(tmp_path, monkeypatch):
    server = ServerConfig(drain_ms=100)
    async with (
        asyncio.timeout(TEST_S),
        joined_node(tmp_path, "a") as a,
        joined_node(tmp_path, "b", a, server=server) as b,
    ):
        await agreed(a, b)
        stream = a.stream_of("b")
        assert (await a.send(stream, 1)).status == 200
        handover = a.clustered.cluster.handover
        assert handover is not None
        monkeypatch.setattr(handover, "requested", lambda *_, **__: None)

        await b.clustered.leave()

        await until(lambda: ("left", "b") in a.seen())
