"""What streams count, and that the alarms speak of what there is."""

import re
from pathlib import Path

import yaml

from tests.server.test_metrics import scrape, value
from tests.server.test_streams_api import streaming

ALERTS = Path(__file__).parents[2] / "docs" / "alerts" / "streams.yml"


async def test_streams_count_what_happens(tmp_path):
    async with streaming(tmp_path) as it:
        await it.send("s", 1, inMemoryStreamSize=1)
        await it.send("s", 2)
        await it.receive("s")
        poll = await it.polling("s")
        await it.send("s", 3)
        await poll
        await it.receive("s", "timeout=1ms")
        await it.store("stored", 1)
        samples = await scrape(it.served)

        counted = {
            "stream_sent_messages_total": 4,
            "stream_received_messages_total": 2,
            "stream_matched_messages_total": 1,
            "stream_polls_answered_total": 2,
            "stream_poll_timeouts_total": 1,
            "stream_overwritten_messages_total": 2,
            "stream_missed_messages_total": 1,
            "stream_stored_messages_total": 1,
            "streams": 2,
            "stream_waiting": 0,
            "stream_store_up": 1,
            "stream_wait_seconds_count": 2,
        }
        assert {name: value(samples, name) for name in counted} == counted


async def test_alarms_speak_of_metrics_there_are(tmp_path):
    rules = [r for group in yaml.safe_load(ALERTS.read_text())["groups"] for r in group["rules"]]
    recorded = {rule["record"] for rule in rules if "record" in rule}
    named = {name for rule in rules for name in re.findall(r"waterclock[\w:]+", rule["expr"])}

    async with streaming(tmp_path) as it:
        there = {name for name, _ in await scrape(it.served)}
        assert named - recorded - there == set()
