"""The console as a node serves it: its files, who looks, what is now and what was."""

import asyncio
import gzip
import json
import re
import threading
from typing import Any
from urllib.parse import urlencode

import grpc
import pytest

import waterclock
from tests.kit.clock import ManualClock
from tests.server.http_client import raw_client, until
from tests.server.secure_serving import SecureNode, secure_node
from tests.server.served import running_server
from waterclock.history.codec import encode as encode_history
from waterclock.history.history import STEP_MS, History
from waterclock.node.counters import LATENESS_MS
from waterclock.node.history import recorder
from waterclock.node.history.counting import count_all as count_topics
from waterclock.security.principals import ANYONE, FILE
from waterclock.server.console import live
from waterclock.server.console.assets import FOLDER, assets
from waterclock.server.console.models import LiveParameters
from waterclock.server.http.messages import Response
from waterclock.v1 import admin_pb2

BROWSER = "Accept: text/html,application/xhtml+xml;q=0.9\r\n"
COMPRESSED_BYTES_MAX = 300 * 1024


def asked(path: str, headers: str = "") -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n".encode()


async def test_browsers_get_the_console_and_others_the_hello_they_had(tmp_path):
    async with running_server(tmp_path) as it, raw_client(it.server.http_port) as client:
        page = await client.ask(asked("/", BROWSER))
        for accept in ("", "Accept: */*\r\n", "Accept: application/json\r\n"):
            hello = await client.ask(asked("/", accept))
            assert hello.json()["links"]["docs"] == "/docs"
            assert hello.headers["vary"] == "Accept"

    assert page.headers["content-type"] == "text/html; charset=utf-8"
    policy = page.headers["content-security-policy"].split("; ")
    assert {"default-src 'none'", "script-src 'self'", "style-src 'self'"} < set(policy)
    assert {"frame-ancestors 'none'", "form-action 'none'", "base-uri 'none'"} < set(policy)
    assert page.headers["vary"] == "Accept, Accept-Encoding"
    named = re.findall(rb'(?:src|href)="/console/([^"]+)"', page.body)
    assert {name.decode() for name in named} <= set(assets())


async def test_a_file_is_sent_once_compressed_and_then_known_by_its_tag(tmp_path):
    async with running_server(tmp_path) as it, raw_client(it.server.http_port) as client:
        plain = await client.ask(asked("/console/app.css"))
        zipped = await client.ask(asked("/console/app.css", "Accept-Encoding: gzip, br\r\n"))
        tag = zipped.headers["etag"]
        known = await client.ask(asked("/console/app.css", f"If-None-Match: {tag}\r\n"))
        after = await client.ask(asked("/health/live"))
        missing = [
            (await client.ask(asked(f"/console/{name}"))).status
            for name in ("nothing.js", "index.html", "..%2fassets.py")
        ]

    assert gzip.decompress(zipped.body) == plain.body == (FOLDER / "app.css").read_bytes()
    assert zipped.headers["content-type"] == "text/css; charset=utf-8"
    assert (known.status, known.body, "content-length" in known.headers) == (304, b"", False)
    assert after.status == 200
    assert missing == [404, 404, 404]


def test_all_of_the_console_is_small_and_nothing_of_it_comes_from_elsewhere():
    sent = sum(len(asset.zipped) for asset in assets().values())
    own = {name: asset.plain for name, asset in assets().items() if not name.startswith("uplot")}

    assert sent < COMPRESSED_BYTES_MAX
    for name, text in own.items():
        found = re.findall(rb"https?://(?!www\.w3\.org/2000/svg)[^\s\"'`]+", text)
        assert (name, found) == (name, [])
        assert not re.search(rb"innerHTML|outerHTML|insertAdjacentHTML|\beval\(", text), name


async def snapshots(client: Any, query: str, count: int) -> list[Any]:
    client.send(asked(f"/console/live{query}"))
    status, headers = await client.head()
    assert (status, headers["content-type"]) == (200, "text/event-stream")
    return [await next_snapshot(client) for _ in range(count)]


async def next_snapshot(client: Any) -> Any:
    return json.loads((await client.chunk()).removeprefix(b"data: "))


async def test_ten_pages_share_one_count_and_nobody_looking_costs_none(tmp_path, monkeypatch):
    counted = []

    async def count_all(*given: Any) -> Any:
        counted.append(1)
        return await count_topics(*given)

    monkeypatch.setattr(live, "count_all", count_all)
    monkeypatch.setattr(live, "TICK_S", 0.01)
    async with running_server(tmp_path) as it:
        port = it.server.http_port
        await it.publish(b"a", b"b")
        async with raw_client(port) as first, raw_client(port) as second:
            for client in (first, second):
                client.send(asked("/console/live"))
                await client.head()
            seen = [
                [(await next_snapshot(each))["nowMs"] for _ in range(3)] for each in (first, second)
            ]
            assert counted
        apis = [each for each in it.server.operations if each.name == "consoleLive"]
        api = apis[0].handler.__self__  # type: ignore[attr-defined]
        await until(lambda: api.live.pages == 0)
        stopped = len(counted)
        await it.publish(b"c")
        await asyncio.sleep(0)

    assert len(counted) == stopped
    assert len(set(seen[0]) | set(seen[1])) <= stopped


async def test_a_thousand_topics_are_filtered_sorted_and_paged_by_the_node(tmp_path, monkeypatch):
    monkeypatch.setattr(live, "TICK_S", 0.01)
    async with running_server(tmp_path) as it, raw_client(it.server.http_port) as client:
        for number in range(7):
            values = [b"%d" % n for n in range(number)]
            if values:
                await it.publish(*values, topic=f"orders-{number}")
        await it.publish(b"x", topic="other")
        [found] = await snapshots(
            client, "?view=topics&filter=ORDERS&sort=messages&descending=true&start=1&limit=2", 1
        )

    assert found["total"] == 6
    assert [row["topic"] for row in found["topics"]] == ["orders-5", "orders-4"]
    assert [row["messages"] for row in found["topics"]] == [5, 4]
    assert found["node"]["topics"] == 7


async def test_a_page_that_is_opened_after_long_is_told_the_rates_of_now(tmp_path):
    clock = ManualClock()
    async with running_server(tmp_path, clock=clock) as it:
        port = it.server.http_port
        async with raw_client(port) as client:
            await snapshots(client, "", 1)
        await it.publish(*(b"%d" % n for n in range(60)))
        clock.advance(3_600_000)
        await it.node.recorder.sample()
        await it.publish(b"x", b"y")
        clock.advance(1_000)
        async with raw_client(port) as client:
            [found] = await snapshots(client, "", 1)

    assert found["node"]["inRate"] == 2.0


def topics_of(line: bytes) -> list[str]:
    return [row["topic"] for row in json.loads(line.removeprefix(b"data: "))["topics"]]


def first_event(node: SecureNode, path: str, bearer: str) -> Any:
    connection = node.connect()
    connection.request("GET", path, headers={"Authorization": bearer})
    line = connection.getresponse().readline()
    connection.close()
    return json.loads(line.removeprefix(b"data: "))


def test_a_page_is_told_what_its_principal_may_see_and_no_more(tmp_path):
    with secure_node(tmp_path) as node:
        node.ask("POST", "/topics", node.admin, {"topic": "a.x"})
        node.ask("POST", "/topics", node.admin, {"topic": "b.x"})
        bearer = node.add("ada", read="a.*")
        session = node.ask("GET", "/console/session", bearer).json()
        refused = {
            path: (node.ask("GET", path, None).status, node.ask("GET", path, bearer).status)
            for path in ("/history", "/history?topic=a.x", "/history?topic=b.x")
        }
        nobody = node.ask("GET", "/console/live", None).status
        shown = first_event(node, "/console/live?view=topics", bearer)
        writer = node.add("bob", publish="b.*")
        written = first_event(node, "/console/live?view=topics", writer)["topics"]

    assert (session["principal"], session["isSecure"], session["isAdmin"]) == ("ada", True, False)
    assert session["rights"] == [{"kind": "read", "what": "any", "glob": "a.*", "groupGlob": "*"}]
    assert refused == {
        "/history": (401, 403),
        "/history?topic=a.x": (401, 200),
        "/history?topic=b.x": (401, 403),
    }
    assert nobody == 401
    assert shown["node"] is None
    assert [(row["topic"], row["groups"]) for row in shown["topics"]] == [("a.x", 0)]
    # As in other lists, who publishes sees the topic; who consumes it is for readers.
    assert [row["topic"] for row in written] == ["b.x"]
    assert [written[0][name] for name in ("groups", "lag", "outRate")] == [None, None, None]


def test_an_open_page_is_told_no_more_than_its_principal_may_see_by_now(tmp_path):
    with secure_node(tmp_path) as node:
        node.ask("POST", "/topics", node.admin, {"topic": "a.x"})
        node.ask("POST", "/topics", node.admin, {"topic": "b.x"})
        headers = {"Authorization": node.add("ada", read="a.*")}
        connection = node.connect()
        connection.request("GET", "/console/live?view=topics", headers=headers)
        with connection.getresponse() as events:
            seen = [topics_of(events.readline())]
            # Its credential stays good: as with those of other issuers, and with certificates.
            principals = node.folder.path / FILE
            principals.write_text(principals.read_text().replace("a.*", "b.*"))
            node.reload()
            while len(seen) < 5 and seen[-1] == seen[0]:
                events.readline()
                seen.append(topics_of(events.readline()))
        connection.close()

    assert (seen[0], seen[-1]) == (["a.x"], ["b.x"])


async def test_the_last_hour_is_there_again_after_a_restart(tmp_path):
    clock = ManualClock(now_ms=1_800_000_000_000)
    async with running_server(tmp_path, clock=clock) as it, raw_client(it.server.http_port) as ask:
        await it.node.recorder.sample()
        await it.publish(*(b"%d" % n for n in range(50)))
        clock.advance(STEP_MS)
        await it.node.recorder.sample()
        before = (await ask.get("/history")).json()
        topic = (await ask.get("/history?topic=orders")).json()
    async with running_server(tmp_path, clock=clock) as it, raw_client(it.server.http_port) as ask:
        await until(lambda: it.node.recorder.history.hour.newest)
        after = (await ask.get("/history")).json()
        unknown = await ask.get("/history?topic=nowhere")
        nobody = await ask.get("/history?node=nobody")

    assert before["series"]["in"][-1] == topic["series"]["in"][-1] == 10.0
    assert after == before
    assert unknown.status == nobody.status == 404
    assert "'nobody'" in nobody.json()["detail"]


async def test_another_node_is_told_at_once_what_was_counted_while_a_page_waits(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(live, "TICK_S", 3_600)
    async with running_server(tmp_path) as it:
        its = live.Live(it.node, None)
        page = its.open(LiveParameters(), lambda: ANYONE.rights).pieces
        await anext(page)
        waiting = asyncio.ensure_future(anext(page))
        await until(its._counting.locked)

        assert await its.for_nodes(has_dead=False)
        waiting.cancel()


class TwoOthers:
    """A cluster in which one node answers as this release does, and another does not."""

    members = membership = replication = None
    others = ("like-this", "another")
    places = object()
    like_this: bytes

    def __init__(self, answer: bytes) -> None:
        self.forwarder = self
        self._answer = answer

    async def ask_node(self, name: str, *what: bytes) -> Response:
        return Response(200, self.like_this if name == "like-this" else self._answer)


@pytest.mark.parametrize("answer", [b"\x81\xa4name\x01", b"{}", b"", b"\x81\xa4name\xa1\xff"])
async def test_a_node_whose_counts_mean_nothing_here_is_shown_as_one_not_heard(tmp_path, answer):
    async with running_server(tmp_path) as it:
        cluster: Any = TwoOthers(answer)
        cluster.like_this = await live.Live(it.node, None).for_nodes(has_dead=False)
        its = live.Live(it.node, cluster)

        event = await anext(its.open(LiveParameters(), lambda: ANYONE.rights).pieces)

    shown = json.loads(bytes(event).removeprefix(b"data: "))["node"]["nodes"]
    assert [each["isHeard"] for each in shown] == [True, True, False]
    assert shown[-1]["name"] == "another"


async def rest(_: recorder.Recorder) -> None:
    await asyncio.Event().wait()


async def test_a_topic_tells_what_fired_there_and_how_late(tmp_path, monkeypatch):
    monkeypatch.setattr(recorder.Recorder, "run", rest)  # the test alone takes samples
    async with running_server(tmp_path) as it, raw_client(it.server.http_port) as ask:
        await it.node.recorder.sample()
        body = b'{"value":"rings","delay":"500ms"}'
        length = f"Content-Length: {len(body)}\r\n"
        await ask.ask(asked("/topics/rings/messages", length).replace(b"GET", b"POST") + body)
        await ask.get("/topics/rings/messages?group=g&limit=1&wait=20s&start=earliest")
        await it.node.recorder.sample()
        series = (await ask.get("/history?topic=rings")).json()["series"]

    [fired] = [value for value in series["fired"] if value]
    [late_ms] = [value for value in series["latenessMaxMs"] if value is not None]
    assert fired > 0
    assert late_ms in LATENESS_MS


async def test_grpc_and_the_client_tell_the_same_of_the_past_as_http(tmp_path):
    clock = ManualClock(now_ms=1_800_000_000_000)
    async with running_server(tmp_path, clock=clock) as it, raw_client(it.server.http_port) as ask:
        await it.node.recorder.sample()
        await it.publish(*(b"%d" % n for n in range(50)))
        clock.advance(STEP_MS)
        await it.node.recorder.sample()
        async with waterclock.connect(it.server.addresses.grpc) as client:
            answered = {
                "": await client.history(),
                "?range=day": await client.history(is_day=True),
                "?topic=orders": await client.history("orders"),
                "?node=test": await client.history(node="test"),
            }
            with pytest.raises(waterclock.NotFound):
                await client.history("nowhere")
        with pytest.raises(grpc.aio.AioRpcError, match="range must be hour or day"):
            await it.admin.GetHistory(admin_pb2.GetHistoryRequest(range="year"))
        for query, history in answered.items():
            shown = (await ask.get("/history" + query)).json()
            assert (history.step_ms, history.end_ms) == (shown["stepMs"], shown["endMs"])
            assert history.series == shown["series"]
            assert history.unreachable == shown["unreachable"] == []

    values = answered["?topic=orders"].series["in"]
    assert (values[0], values[-1]) == (None, 10.0)


async def test_the_history_is_packed_beside_the_loop(tmp_path, monkeypatch):
    packing: list[threading.Thread] = []

    def encode(history: History) -> bytes:
        packing.append(threading.current_thread())
        return encode_history(history)

    async with running_server(tmp_path) as it:
        monkeypatch.setattr(recorder, "encode", encode)
        await it.node.recorder.save()
        monkeypatch.undo()

    assert packing
    assert threading.current_thread() not in packing


@pytest.mark.parametrize("damage", [b"", b"no history at all"])
async def test_a_history_that_cannot_be_read_begins_anew(tmp_path, damage, caplog):
    folder = tmp_path / "history"
    folder.mkdir()
    (folder / "samples").write_bytes(damage)
    async with running_server(tmp_path) as it, raw_client(it.server.http_port) as client:
        await until(lambda: "history_not_read" in caplog.text)
        known = (await client.get("/history")).json()["series"]["in"]
        assert set(known[:-10]) == {None}


async def test_a_time_that_is_typed_is_read_by_the_clocks_of_a_zone(tmp_path):
    async with running_server(tmp_path) as it, raw_client(it.server.http_port) as client:

        async def read(text: str, zone: str) -> Any:
            path = f"/console/moment?{urlencode({'text': text, 'zone': zone})}"
            return (await client.get(path)).json()

        session = (await client.get("/console/session")).json()
        plain = await read("2026-12-24 18:00", "Europe/Berlin")
        twice = await read("2026-10-25 02:30", "Europe/Berlin")
        skipped = await read("2026-03-29 02:30", "Europe/Berlin")
        unknown = await read("18:00", "Mars/Base")

        assert session["grpcPort"] == it.server.grpc_port
        assert plain == {"timeMs": 1798131600000, "againMs": None, "isRelative": False, "wrong": ""}
        assert twice["againMs"] - twice["timeMs"] == 3_600_000
        assert skipped["timeMs"] is None
        assert "clocks in Europe/Berlin skip it" in skipped["wrong"]
        assert unknown["wrong"] == "time: zone: 'Mars/Base' is not a known IANA time zone"
