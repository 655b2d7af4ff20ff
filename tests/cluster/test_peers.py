"""Nodes that are linked over loopback: they meet, ask, are cut off, and meet again."""

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from random import Random

import pytest

from waterclock.cluster.peer_link.channels import Channel
from waterclock.cluster.peer_link.frames import Hello, Kind, encode, encode_hello
from waterclock.model.errors import Unreachable
from waterclock.server.cluster.peers import Peers, PeerSecurity

ECHO, SILENT = 1, 2
HELLO = Hello("", "test", heartbeat_ms=200, silence_ms=5_000)


class Node:
    """A node that echoes what is asked of it, or is silent, and tells what it sees."""

    def __init__(self, name: str, security: PeerSecurity) -> None:
        self.name = name
        self.waiting: list[Channel] = []
        self.downs: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
        self.gone: asyncio.Queue[str] = asyncio.Queue()
        self.ups: asyncio.Queue[str] = asyncio.Queue()
        self.peers = Peers(
            HELLO._replace(node_id=name),
            security,
            on_request=self._asked,
            on_up=self.ups.put_nowait,
            on_down=lambda node, why: self.downs.put_nowait((node, why)),
            on_gone=self.gone.put_nowait,
            random=Random(name),
        )

    def _asked(self, node, channel, method, body, is_last):
        if method == ECHO:
            channel.answer(200, f"{self.name} heard {node}: ".encode() + body)
        else:
            self.waiting.append(channel)

    def meet(self, other: "Node") -> None:
        self.peers.meet(other.name, *other.peers.address)


class Answer:
    def __init__(self) -> None:
        self.heard: asyncio.Future[tuple[int, bytes]] = asyncio.Future()

    def answered(self, status, body, *, is_last):
        assert is_last
        self.heard.set_result((status, body))

    def piece(self, body, *, is_last):
        raise AssertionError("there is one piece")

    def failed(self, error):
        self.heard.set_exception(error)

    def drained(self):
        raise AssertionError("nothing waits")


def killed(node: Node):
    """Return how links end if a process is killed: nobody says a word."""

    async def close() -> None:
        for link in {*node.peers._links.values(), *node.peers._strangers}:
            link.abort()

    return close


async def ask(node: Node, other: str, method: int = ECHO, body: bytes = b"") -> tuple[int, bytes]:
    answer = Answer()
    node.peers.ask(other, method, body, answer)
    return await answer.heard


@asynccontextmanager
async def nodes(*names: str, security=None, securities=None):
    async with AsyncExitStack() as stack:
        made = []
        for number, name in enumerate(names):
            each = securities[number] if securities else security or PeerSecurity((b"secret",))
            node = Node(name, each)
            await stack.enter_async_context(node.peers.listening("127.0.0.1", 0))
            made.append(node)
        async with asyncio.timeout(20):
            yield made


async def test_two_nodes_meet_and_ask_each_other():
    async with nodes("a", "b") as (a, b):
        a.meet(b)
        assert (await a.ups.get(), await b.ups.get()) == ("b", "a")
        assert await ask(a, "b", body=b"hi") == (200, b"b heard a: hi")
        assert await ask(b, "a", body=b"ho") == (200, b"a heard b: ho")


async def test_two_nodes_that_dial_each_other_at_once_keep_one_link_and_lose_no_request():
    async with nodes("a", "b") as (a, b):
        a.meet(b)
        b.meet(a)
        await a.ups.get()
        await b.ups.get()
        answers = await asyncio.gather(*(ask(a, "b") for _ in range(50)))
        assert {status for status, _ in answers} == {200}
        while a.peers._strangers or b.peers._strangers:  # noqa: ASYNC110  nobody tells us
            await asyncio.sleep(0.01)
        (link,) = a.peers._links.values()
        assert link.is_dialler  # "a" is the lower name
        assert a.ups.empty()
        assert a.downs.empty()


async def test_a_node_that_goes_away_is_known_at_once_and_met_again_when_it_is_back():
    async with nodes("a") as (a,):
        async with nodes("b") as (b,):
            address = b.peers.address
            a.meet(b)
            await a.ups.get()
            waiting = asyncio.ensure_future(ask(a, "b", SILENT))
            while not b.waiting:  # noqa: ASYNC110  nobody tells us
                await asyncio.sleep(0.01)
        assert await a.downs.get() == ("b", "it says: the node stops")
        with pytest.raises(Unreachable, match="b cannot be reached: it says: the node stops"):
            await waiting
        with pytest.raises(Unreachable, match="no link to b"):
            a.peers.ask("b", ECHO, b"", Answer())
        back = Node("b", PeerSecurity((b"secret",)))
        async with back.peers.listening(*address):
            assert await a.ups.get() == "b"
            assert (await ask(a, "b"))[0] == 200


async def test_a_node_whose_process_ended_without_a_word_is_known_to_be_gone():
    async with nodes("a") as (a,):
        async with nodes("b") as (b,):
            a.meet(b)
            await a.ups.get()
            b.peers._close = killed(b)
        assert (await a.downs.get())[0] == "b"
        assert await a.gone.get() == "b"


async def test_a_node_that_says_goodbye_is_not_taken_for_dead():
    async with nodes("a") as (a,):
        async with nodes("b") as (b,):
            address = b.peers.address
            a.meet(b)
            await a.ups.get()
        await a.downs.get()
        back = Node("b", PeerSecurity((b"secret",)))
        async with back.peers.listening(*address):
            await a.ups.get()
            assert a.gone.empty()


async def test_links_are_made_while_secrets_are_rotated():
    securities = [PeerSecurity((b"new", b"old")), PeerSecurity((b"old", b"new"))]
    for dialler, accepter in ((0, 1), (1, 0)):
        async with nodes("a", "b", securities=securities) as both:
            both[dialler].meet(both[accepter])
            assert await both[dialler].ups.get() == both[accepter].name


async def test_a_node_without_the_secret_is_not_met():
    securities = [PeerSecurity((b"secret",)), PeerSecurity((b"another",)), PeerSecurity()]
    async with nodes("a", "b", "c", securities=securities) as (a, b, c):
        ended: asyncio.Queue[str] = asyncio.Queue()
        a.peers._lost = lambda link, why: ended.put_nowait(why)
        a.meet(b)
        assert await ended.get() == "it says: it does not know the secret"
        a.peers.part("b")
        c.meet(a)
        # It introduces itself at once, as nobody asks it for a proof.
        assert await ended.get() == "there is a cluster secret: prove first that you know it"
        assert a.peers.linked == b.peers.linked == c.peers.linked == []


@pytest.mark.parametrize(
    ("said", "answered"),
    [
        (b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", b"kind 47 is unknown"),
        (encode(Kind.HEARTBEAT), b"prove first who you are"),
        (encode(Kind.AUTH, 0, bytes(33)) * 2, b"a second challenge"),
        (encode(Kind.AUTH, 0, b"\1" + bytes(32)), b"a proof before the challenge"),
        (encode_hello(HELLO._replace(node_id="x")), b"prove first that you know it"),
    ],
)
async def test_a_stranger_is_told_why_and_hung_up_on(said, answered):
    async with nodes("a") as (a,):
        reader, writer = await asyncio.open_connection(*a.peers.address)
        writer.write(said)
        assert answered in await reader.read()
        writer.close()
        await writer.wait_closed()


@pytest.mark.parametrize(
    ("hello", "answered"),
    [
        (HELLO._replace(node_id="x", cluster="another"), b"this is cluster 'test', not 'another'"),
        (HELLO._replace(node_id="a"), b"both nodes are called 'a'"),
        (HELLO._replace(node_id="x", heartbeat_ms=6_000, silence_ms=6_000), b"too seldom here"),
    ],
)
async def test_a_node_that_cannot_be_of_this_cluster_is_refused_by_name(hello, answered):
    async with nodes("a", security=PeerSecurity()) as (a,):
        reader, writer = await asyncio.open_connection(*a.peers.address)
        writer.write(encode_hello(hello))
        assert answered in await reader.read()
        writer.close()
        await writer.wait_closed()


async def test_a_silent_node_is_taken_for_gone(monkeypatch):
    monkeypatch.setattr(f"{__name__}.HELLO", HELLO._replace(heartbeat_ms=50, silence_ms=200))
    async with nodes("a", security=PeerSecurity()) as (a,):
        _, writer = await asyncio.open_connection(*a.peers.address)
        writer.write(encode_hello(HELLO._replace(node_id="x")))
        assert await a.ups.get() == "x"
        assert await a.downs.get() == ("x", "silent for 200 ms")
        writer.close()
        await writer.wait_closed()


async def test_a_node_that_did_not_run_itself_takes_nobody_for_silent():
    async with nodes("a", "b") as (a, b):
        a.meet(b)
        assert (await a.ups.get(), await b.ups.get()) == ("b", "a")
        (link,) = a.peers._links.values()
        loop = asyncio.get_running_loop()
        link._timer.cancel()
        # As it is when a process goes on that was stopped: the beat is late by as much.
        link._timer = loop.call_at(loop.time() - 60, link._beat)
        link.heard_at -= 60

        assert await ask(a, "b", body=b"hi") == (200, b"b heard a: hi")
        assert a.downs.empty()
