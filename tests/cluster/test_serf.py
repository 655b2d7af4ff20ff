"""Our nodes among agents of Serf: each sees the other come, change, fail and leave."""

import asyncio
import base64
import signal
from dataclasses import replace

import pytest

from benchmarks.peers.cache import Absent
from tests.cluster.gossip.agents import watched_agent
from tests.cluster.serf_agents import programs, serf_agent
from tests.stores.servers.registry import reason_to_skip
from waterclock.cluster.gossip import Failed, GossipConfig, Joined, Keyring, Left, State, Updated
from waterclock.cluster.gossip.messages import Ack, Address, IndirectPing, Message, Suspect, encode
from waterclock.cluster.gossip.packets import unpacked

LOCAL = GossipConfig.local()
KEY = bytes(range(32))


@pytest.fixture(autouse=True, scope="module")
def serf() -> None:
    """Have Serf, or skip all of this."""
    try:
        programs()
    except Absent as absent:
        pytest.skip(reason_to_skip("debian", absent))


class Stranger(asyncio.DatagramProtocol):
    """A socket that is no member: it sends messages and keeps what comes."""

    def __init__(self) -> None:
        self.received: asyncio.Queue[list[Message]] = asyncio.Queue()

    def datagram_received(self, data: bytes, addr: object) -> None:
        self.received.put_nowait(unpacked(data))

    async def until(self, message: Message) -> None:
        while message not in await self.received.get():
            pass


async def asked(request: Message, *, of: Address, answer: Message) -> None:
    """Send a request from a socket of its own, and wait for the answer."""
    loop = asyncio.get_running_loop()
    transport, stranger = await loop.create_datagram_endpoint(Stranger, local_addr=("127.0.0.1", 0))
    try:
        transport.sendto(encode(request), of)
        await stranger.until(answer)
    finally:
        transport.close()


async def test_we_join_serf_with_tags_change_them_and_leave():
    async with (
        serf_agent("go", "-tag", "zone=a") as go,
        watched_agent("py", go.seed, gossip=LOCAL, tags={"id": "1", "zone": "b"}) as py,
    ):
        await py.until(Joined, "go")
        await go.until_event("Join", "py")
        theirs = (await go.members())["py"]
        assert (theirs["status"], theirs["tags"]) == ("alive", {"id": "1", "zone": "b"})
        assert next(each for each in py.agent.members() if each.name == "go").tags == {"zone": "a"}

        py.agent.set_tags({"id": "1", "zone": "c"})
        await go.until_event("Update", "py")
        assert (await go.members())["py"]["tags"] == {"id": "1", "zone": "c"}

        await go.ask("tags", "-set", "zone=d")
        await py.until(Updated, "go")

        await py.agent.leave()
        await go.until_event("Leave", "py")
        assert (await go.members())["py"]["status"] == "left"
        assert ("Failed", "py") not in go.events


async def test_serf_joins_us_and_leaves():
    async with watched_agent("py", gossip=LOCAL) as py, serf_agent("go") as go:
        await go.ask("join", py.seed)
        await go.until_event("Join", "py")
        await py.until(Joined, "go")

        await go.ask("leave")
        await py.until(Left, "go")
        assert (Failed, "go") not in py.seen()


async def test_each_pings_the_other_for_a_third():
    async with serf_agent("go") as go, watched_agent("py", go.seed, gossip=LOCAL) as py:
        await go.until_event("Join", "py")
        await py.until(Joined, "go")

        through_go = IndirectPing(41, py.agent.address, "py", False)
        await asked(through_go, of=go.address, answer=Ack(41))
        through_py = IndirectPing(42, go.address, "go", False)
        await asked(through_py, of=py.agent.address, answer=Ack(42))


async def test_a_kill_is_noticed_by_serf_and_by_us():
    async with serf_agent("go") as go, watched_agent("py1", go.seed, gossip=LOCAL) as first:
        async with watched_agent("py2", go.seed, gossip=LOCAL):
            await first.until(Joined, "py2")
            await go.until_event("Join", "py2")
        # It did not leave: to the others it is as if it had been killed.
        await go.until_event("Failed", "py2")
        await first.until(Failed, "py2")

        go.send(signal.SIGKILL)
        await first.until(Failed, "go")


async def test_an_accusation_is_refuted_by_us_to_serf_and_by_serf_to_us():
    async with serf_agent("go") as go, watched_agent("py", go.seed, gossip=LOCAL) as py:
        await go.until_event("Join", "py")
        await py.until(Joined, "go")
        me, other = py.agent.members()

        # A stranger accuses each to the other: both refute with a greater incarnation.
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_datagram_endpoint(Stranger, local_addr=("127.0.0.1", 0))
        transport.sendto(encode(Suspect(me.incarnation, "py", "x")), go.address)
        transport.sendto(encode(Suspect(other.incarnation, "go", "x")), py.agent.address)
        py.agent.set_tags({"later": "1"})
        await go.ask("tags", "-set", "later=1")
        await go.until_event("Update", "py")
        await py.until(Updated, "go")
        transport.close()

        assert [each.state for each in py.agent.members()] == [State.ALIVE, State.ALIVE]
        assert ("Failed", "py") not in go.events
        assert (Failed, "go") not in py.seen()


async def test_serf_that_hung_and_was_taken_for_dead_is_back_by_itself():
    async with serf_agent("go") as go, watched_agent("py", go.seed, gossip=LOCAL) as py:
        await py.until(Joined, "go")
        await go.until_event("Join", "py")
        go.send(signal.SIGSTOP)
        await py.until(Failed, "go")
        py.events.clear()

        go.send(signal.SIGCONT)
        await py.until(Joined, "go")
        assert (await go.members())["py"]["status"] == "alive"


async def test_a_partition_between_serf_and_us_heals_by_itself():
    soon = replace(LOCAL, reconnect_interval_ms=1_000)
    async with serf_agent("go") as go, watched_agent("py", go.seed, gossip=soon) as py:
        await py.until(Joined, "go")
        await go.until_event("Join", "py")
        with py.cut_off():
            await go.until_event("Failed", "py")
            await py.until(Failed, "go")
            py.events.clear()
            go.events.clear()

        await py.until(Joined, "go")
        await go.until_event("Join", "py")


async def test_with_a_key_we_join_serf_and_leave_and_with_another_we_do_not():
    flag = f"-encrypt={base64.b64encode(KEY).decode()}"
    async with (
        serf_agent("go", flag) as go,
        watched_agent("no", go.seed, gossip=LOCAL, keyring=Keyring([b"x" * 16])) as no,
        watched_agent("py", go.seed, gossip=LOCAL, keyring=Keyring([KEY, b"x" * 16])) as py,
    ):
        await py.until(Joined, "go")
        await go.until_event("Join", "py")
        await py.agent.leave()
        await go.until_event("Leave", "py")

        assert (await go.members()).keys() == {"go", "py"}
        assert no.seen() == []
