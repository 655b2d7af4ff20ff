"""Pages of other sites in a real browser, which try to use a node: they read and change nothing.

Names below `.example` lead to this machine, so that a page of one of them is a foreign one. A site
serves the page. At its second port it passes on to the node whatever comes after the page, as if
the owner of the name had it lead there from then on (DNS rebinding). What a page tries here does
work on a node that lets any page in.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from benchmarks.peers.server import free_port
from tests.kit.browser import Page, browser
from tests.server.http_client import raw_client, until
from tests.server.served import running_server
from waterclock.model.sections import ServerConfig

FLAGS = (
    "--host-resolver-rules=MAP *.example 127.0.0.1",
    # The node must hold without what some browsers do by themselves.
    "--disable-features=LocalNetworkAccessChecks,HttpsUpgrades",
)
TITLE = "a page"
PAGE = (
    "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nConnection: close\r\n\r\n"
    f"<!doctype html><title>{TITLE}</title><body>"
).encode()
MESSAGES = ("one", "two", "three")

HELPERS = """
const loaded = (kind, set) => new Promise(done => {
    const made = document.createElement(kind);
    made.onload = made.onerror = () => done("");
    set(made);
    document.body.append(made);
});
const read = response => response.text();
const nothing = () => "";
const first = (url) => new Promise(done => {
    const source = new EventSource(url);
    source.onmessage = event => { source.close(); done(event.data); };
    source.onerror = () => { source.close(); done(""); };
});
const formed = (url, enctype, name, value) => new Promise(done => {
    const [frame, form, input] = ["iframe", "form", "input"].map(e => document.createElement(e));
    Object.assign(form, {action: url, method: "POST", enctype, target: frame.name = "into"});
    Object.assign(input, {name, value});
    form.append(input);
    document.body.append(frame, form);  // now it shows an empty page
    frame.onload = () => done("");
    form.submit();
});
"""
TAKING = "/topics/orders/messages?group="
ATTEMPTS = {
    "fetch": f"fetch(node + '{TAKING}fetch').then(read, nothing)",
    "no-cors": f"fetch(node + '{TAKING}no-cors', {{mode: 'no-cors'}}).then(read, nothing)",
    "image": f"loaded('img', made => made.src = node + '{TAKING}image')",
    "script": f"loaded('script', made => made.src = node + '{TAKING}script')",
    "frame": f"loaded('iframe', made => made.src = node + '{TAKING}frame')",
    "events": "first(node + '/topics/orders/events?ack=auto&group=events')",
    "replay": "loaded('img', made => made.src = node + '/topics/orders/replay?name=replay')",
    "stream": "fetch(node + '/streams/receive?streamId=s&timeout=0s').then(read, nothing)",
    "list": "fetch(node + '/topics').then(read, nothing)",
    "text": """fetch(node + '/topics/orders/messages',
        {method: 'POST', mode: 'no-cors', body: '{"value": "text"}'}).then(nothing, nothing)""",
    "json": """fetch(node + '/topics/orders/messages', {method: 'POST', body: '{"value": "json"}',
        headers: {'Content-Type': 'application/json'}}).then(read, nothing)""",
    "form": """formed(node + '/topics/orders/messages', 'text/plain', '{"value": "form', '"}')""",
    "delete": """fetch(node + '/topics/orders', {method: 'DELETE'}).then(
        async response => await read(response) || `{"status": ${response.status}}`, nothing)""",
}


@pytest.fixture(scope="session")
def page(tmp_path_factory) -> Iterator[Page]:
    """Run one browser for all."""
    with browser(tmp_path_factory.mktemp("browser"), *FLAGS) as page:
        yield page


@dataclass
class World:
    """A node, a site beside it, and a browser."""

    page: Page
    node_port: int
    site_port: int
    rebinding_port: int

    async def open(self, url: str) -> None:
        """Show a page of the site."""
        await asyncio.to_thread(self.page.open, url)
        await asyncio.to_thread(self.page.wait, f"document.title == '{TITLE}'")

    async def run(self, script: str, node: str) -> Any:
        """Run a script in the page; return what it could read."""
        block = f"(async () => {{ const node = '{node}'; {HELPERS} return {script}; }})()"
        return await asyncio.to_thread(self.page.value, block)

    async def attempt(self, node: str, but: str = "") -> dict[str, str]:
        """Try everything from the page that is shown; return what it could read of it."""
        tried = {name: script for name, script in ATTEMPTS.items() if name != but}
        found = {name: await self.run(script, node) for name, script in tried.items()}
        return {name: text for name, text in found.items() if text}

    async def rebind(self) -> str:
        """Show a page of a name that leads to the node from then on; return its origin."""
        origin = f"http://rebound.example:{self.rebinding_port}"
        await self.open(f"{origin}/")
        return origin

    async def follow(self, url: str, claim: str) -> None:
        """Follow a link of the page that is shown, until a claim holds of where it leads."""
        await asyncio.to_thread(self.page.value, f"void (location.href = '{url}')")
        await asyncio.to_thread(self.page.wait, claim)

    async def state(self) -> dict[str, Any]:
        """Return what is on the node, as one who may ask sees it."""
        async with raw_client(self.node_port) as client:

            async def get(path: str) -> Any:
                answer = await client.get(path)
                return answer.json() if answer.status == 200 else None

            topics = [each["topic"] for each in (await get("/topics"))["topics"]]
            groups = [each["group"] for each in (await get("/groups"))["groups"]]
            replays = [each["name"] for each in (await get("/replays"))["replays"]]
            stream = await get("/streams/s")
            read = await client.get("/topics/orders/partitions/0/messages?offset=0&count=99")
            lines = [json.loads(line) for line in read.body.splitlines()]
            values = [line["value"] for line in lines if "value" in line]
        return {
            "topics": topics, "groups": sorted(groups), "replays": replays, "stream": stream,
            "values": values,
        }  # fmt: skip


class Site:
    """Serves the page, at any address or at `/` alone; the rest is then passed on to a node."""

    def __init__(self, node_port: int | None = None) -> None:
        self._node_port = node_port
        self._writers: set[asyncio.StreamWriter] = set()

    @asynccontextmanager
    async def listening(self, port: int) -> AsyncIterator[int]:
        """Serve; return the port."""
        async with await asyncio.start_server(self._serve, "127.0.0.1", port) as server:
            yield int(server.sockets[0].getsockname()[1])
        for writer in self._writers:
            writer.transport.abort()
        await until(lambda: not self._writers)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        # Browsers like to connect ahead: nothing may ever come.
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            head = await reader.readuntil(b"\r\n\r\n")
            if self._node_port is None or head.startswith(b"GET / "):
                writer.write(PAGE)
            else:
                await self._pass_on(head, reader, writer, self._node_port)
        writer.close()
        self._writers.discard(writer)

    async def _pass_on(
        self, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int
    ) -> None:
        from_node, to_node = await asyncio.open_connection("127.0.0.1", port)
        to_node.write(head)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(_copy(reader, to_node))
                tasks.create_task(_copy(from_node, writer))
        finally:
            to_node.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(65_536):
            writer.write(data)
    writer.close()


@asynccontextmanager
async def world(
    folder: Path, page: Page, server: ServerConfig, *, site_port: int | None = None
) -> AsyncIterator[World]:
    """Have a node with something on it."""
    site_port = site_port or free_port()
    async with (
        running_server(folder, server=server) as served,
        Site().listening(site_port),
        Site(served.server.http_port).listening(0) as rebinding_port,
    ):
        port = served.server.http_port
        async with raw_client(port) as client:
            await client.post("/topics", {"topic": "orders", "partitions": 1})
            for value in MESSAGES:
                await client.post("/topics/orders/messages", {"value": value})
            await client.post("/streams/send", {"streamId": "s", "message": "m"})
        yield World(page, port, site_port, rebinding_port)


LISTS = {"no list": (), "a list": ("https://app.example.com", "http://friend.example")}


@pytest.mark.parametrize("origins", LISTS.values(), ids=LISTS)
@pytest.mark.parametrize("at", ["evil.example", "127.0.0.1"])
async def test_a_page_of_another_origin_reads_and_changes_nothing(tmp_path, page, origins, at):
    async with world(tmp_path, page, ServerConfig(cors_origins=origins)) as it:
        before = await it.state()
        await it.open(f"http://{at}:{it.site_port}/")

        assert await it.attempt(f"http://127.0.0.1:{it.node_port}") == {}
        assert await it.state() == before


async def test_a_browser_that_does_not_tell_the_site_reads_and_changes_nothing(tmp_path, page):
    # Chromium tells it over TLS and to this machine alone.
    async with world(tmp_path, page, ServerConfig(hosts=("node.example",))) as it:
        before = await it.state()
        await it.open(f"http://evil.example:{it.site_port}/")

        assert await it.attempt(f"http://node.example:{it.node_port}") == {}
        assert await it.state() == before


async def test_a_name_that_is_made_to_lead_to_the_node_reads_and_changes_nothing(tmp_path, page):
    async with world(tmp_path, page, ServerConfig()) as it:
        before = await it.state()
        node = await it.rebind()

        read = await it.attempt(node)

        assert {"fetch", "list", "json", "delete"} <= set(read)
        assert {json.loads(text)["status"] for text in read.values()} == {421}
        assert await it.state() == before


@pytest.mark.parametrize("way", ["foreign", "rebound"])
async def test_on_a_node_that_lets_everyone_in_every_attempt_succeeds(tmp_path, page, way):
    anyone = ServerConfig(cors_origins=("*",), hosts=("*",))
    async with world(tmp_path, page, anyone) as it:
        if way == "rebound":
            node = await it.rebind()
        else:
            await it.open(f"http://evil.example:{it.site_port}/")
            node = f"http://127.0.0.1:{it.node_port}"

        read = await it.attempt(node, but="delete")
        after = await it.state()
        deleted = await it.run(ATTEMPTS["delete"], node)

        assert "one" in read["fetch"]
        assert "one" in read["events"]
        assert "m" in read["stream"]
        assert "orders" in read["list"]
        assert after["groups"] == ["events", "fetch", "frame", "image", "no-cors", "script"]
        assert after["replays"] == ["replay"]
        assert after["values"] == [*MESSAGES, "text", "json", "form="]
        assert json.loads(deleted)["status"] == 204
        assert (await it.state())["topics"] == []


async def test_a_page_of_a_listed_origin_may_do_whatever_it_tells_its_origin_with(tmp_path, page):
    site_port = free_port()
    site = f"http://friend.example:{site_port}"
    server = ServerConfig(cors_origins=(site,))
    async with world(tmp_path, page, server, site_port=site_port) as it:
        await it.open(f"{site}/")
        node = f"http://127.0.0.1:{it.node_port}"

        read = await it.attempt(node, but="delete")
        after = await it.state()
        deleted = await it.run(ATTEMPTS["delete"], node)

        assert "one" in read["fetch"]
        assert "one" in read["events"]
        assert "orders" in read["list"]
        # An image, a script and a frame do not tell whose they are.
        assert after["groups"] == ["events", "fetch"]
        assert after["values"] == [*MESSAGES, "text", "json", "form="]
        assert json.loads(deleted)["status"] == 204


async def test_a_link_of_another_site_shows_the_page_of_the_node_and_takes_nothing(tmp_path, page):
    async with world(tmp_path, page, ServerConfig()) as it:
        before = await it.state()
        node = f"http://127.0.0.1:{it.node_port}"
        await it.open(f"http://evil.example:{it.site_port}/")
        await it.follow(f"{node}{TAKING}link", "document.body?.innerText.includes('cors_origins')")
        await it.open(f"http://evil.example:{it.site_port}/")
        await it.follow(f"{node}/docs", "document.title.startsWith('Waterclock')")
        style = "getComputedStyle(document.querySelector('pre')).overflowX"

        assert await asyncio.to_thread(it.page.value, style) == "auto"
        assert await it.state() == before


async def test_a_person_may_type_any_address_of_the_node(tmp_path, page):
    async with world(tmp_path, page, ServerConfig()) as it:
        await asyncio.to_thread(page.open, f"http://localhost:{it.node_port}{TAKING}typed")
        claim = "document.body?.innerText.includes('one')"
        await asyncio.to_thread(page.wait, claim)

        assert (await it.state())["groups"] == ["typed"]
