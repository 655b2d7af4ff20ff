"""An agent streams its answer token by token to a browser, which reconnects without losing one.

    python examples/llm_tokens.py               serves a page, and says where; Ctrl-C ends it
    python examples/llm_tokens.py --headless    plays the browser itself, and cuts its connection

Needs a node: `waterclock up --set server.cors_origins=http://127.0.0.1:8000` lets the page in;
`--headless` needs no such permission. Tokens are stored, each with a resume token as the id of its
event. A browser that loses the connection asks for what follows the last id it has seen, by itself.
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlencode, urlsplit
from uuid import uuid4

import waterclock

PAGE = Path(__file__).with_name("llm_tokens.html")
ANSWER = """A water clock tells the time by a stream: what has flowed is past, what is still above
is yet to come. Nobody asks it twice for the same drop, and no drop falls before its time. Whoever
looks away for a while sees on coming back how high the water stands, and goes on from there."""
CUT_EVERY = 15
PORT = 8000


async def agent(client: waterclock.Client, stream: str, *, pace_s: float) -> None:
    """Think of one token after the other, and send each as soon as it is there."""
    for number, token in enumerate(ANSWER.split()):
        await asyncio.sleep(pace_s)
        await client.streams.send_and_store(stream, {"number": number, "token": token})
    await client.streams.send_and_store(stream, {"done": True})


async def events(
    url: str, stream: str, last_id: str
) -> AsyncIterator[tuple[str, dict[str, object]]]:
    """Yield (id, message) as an EventSource gets them, over one connection."""
    place = urlsplit(url)
    reader, writer = await asyncio.open_connection(place.hostname, place.port)
    query = urlencode({"streamId": stream})
    resume = f"Last-Event-ID: {last_id}\r\n" if last_id else ""
    writer.write(f"GET /streams/events?{query} HTTP/1.0\r\n{resume}\r\n".encode())
    try:
        async for line in reader:
            name, _, value = line.decode().rstrip("\n").partition(": ")
            if name == "id":
                last_id = value
            elif name == "data":
                yield last_id, json.loads(value)["message"]
    finally:
        writer.transport.abort()


async def play_browser(url: str, stream: str) -> None:
    """Read to the end, through one cut connection after the other."""
    tokens: list[str] = []
    last_id, connections, is_done = "", 0, False
    while not is_done:
        connections += 1
        reading = events(url, stream, last_id)
        async for event_id, message in reading:
            last_id = event_id
            if is_done := "done" in message:
                break
            tokens.append(str(message["token"]))
            if len(tokens) % CUT_EVERY == 0:
                break  # in the midst of the answer: what is on its way is lost
        await reading.aclose()  # type: ignore[attr-defined]
    print(f"{len(tokens)} tokens over {connections} connections")
    print("each once, in order:", tokens == ANSWER.split())


async def page_server(url: str, stream: str, port: int) -> asyncio.Server:
    """Serve the page, which reads from the node at a URL."""
    page = PAGE.read_text().replace("{{url}}", url).replace("{{stream}}", stream).encode()
    head = "HTTP/1.0 200 OK\r\nContent-Type: text/html; charset=utf-8\r\n\r\n"

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(head.encode() + page)
        writer.close()

    return await asyncio.start_server(answer, "127.0.0.1", port)


async def serve_page(url: str, stream: str) -> None:
    """Serve the page until somebody ends it."""
    server = await page_server(url, stream, PORT)
    print(f"Open http://127.0.0.1:{PORT}/ in a browser. Ctrl-C ends it.", flush=True)
    await server.serve_forever()


async def main(*, is_headless: bool) -> None:
    """Let an agent answer, and somebody read."""
    stream = f"answer-{uuid4()}"
    async with waterclock.connect() as client, asyncio.TaskGroup() as tasks:
        url = (await client.node()).http_address
        tasks.create_task(agent(client, stream, pace_s=0.001 if is_headless else 0.2))
        await (play_browser(url, stream) if is_headless else serve_page(url, stream))


if __name__ == "__main__":
    try:
        asyncio.run(main(is_headless="--headless" in sys.argv[1:]))
    except KeyboardInterrupt:
        print()
