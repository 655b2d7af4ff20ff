"""The page of examples/llm_tokens.py in a real browser: no token is lost when connections are."""

import asyncio
import os
from pathlib import Path

from benchmarks.peers.server import free_port
from examples import llm_tokens
from tests.client.http_peers import proxy_of
from tests.kit.browser import Page, browser, found
from tests.server.served import running_server
from waterclock.client.client import connect
from waterclock.model.sections import ServerConfig

TOKENS = llm_tokens.ANSWER.split()
PARTS = (TOKENS[:20], TOKENS[20:40], TOKENS[40:])
PICTURE = "WATERCLOCK_PICTURE"
"""Names a file for a picture of the page, for whoever wants to see it."""
CUT_TWICE = """
sources = 0;
EventSource = class extends EventSource { constructor(url) { super(url); sources++; } };
for (let times = 0; times < 2; times++) document.getElementById("cut").click();
"""


def text_of(page: Page, name: str) -> str:
    return str(page.value(f"document.getElementById('{name}').textContent"))


async def test_a_browser_shows_every_token_once_though_its_connections_are_cut(tmp_path):
    found()
    port = free_port()
    origin = f"http://127.0.0.1:{port}"

    def look(url: str, send_next_part: asyncio.Event, loop: asyncio.AbstractEventLoop) -> None:
        with browser(tmp_path / "profile") as page:
            page.open(url)
            for count in (20, 40):
                page.wait(f"document.getElementById('count')?.textContent == '{count}'")
                if count == 40:  # somebody who is impatient
                    page.value(CUT_TWICE)
                loop.call_soon_threadsafe(send_next_part.set)
            page.wait("document.getElementById('state').className == 'done'")
            if name := os.environ.get(PICTURE):
                page.picture(Path(name))
            assert text_of(page, "answer").split() == TOKENS
            assert int(text_of(page, "connections")) >= 3
            assert page.value("sources") == 1

    async with (
        running_server(tmp_path / "node", server=ServerConfig(cors_origins=(origin,))) as served,
        proxy_of(served.server.addresses.http_port) as proxy,
        connect(served.server.addresses.grpc) as client,
        await llm_tokens.page_server(proxy.url, "answer", port),
        asyncio.TaskGroup() as tasks,
    ):
        next_part, number = asyncio.Event(), 0
        looking = tasks.create_task(
            asyncio.to_thread(look, f"{origin}/", next_part, asyncio.get_running_loop())
        )
        for part in PARTS:
            for token in part:
                message = {"number": number, "token": token}
                await client.streams.send_and_store("answer", message)
                number += 1
            if part is not PARTS[-1]:
                await next_part.wait()
                next_part.clear()
                proxy.cut()
        await client.streams.send_and_store("answer", {"done": True})
        await looking
