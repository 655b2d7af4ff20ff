"""Times that the reader types are read by their clock, and shown as one moment at first."""

import shlex
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.browser.console import Console
from waterclock.runtime.clock import SystemClock

PROGRAM = str(Path(sys.executable).parent / "waterclock")


def reader_in(console: Console, zone: str) -> None:
    console.page.call("Emulation.setTimezoneOverride", timezoneId=zone)


def command(said: str) -> str:
    """Return the command line among those that a form shows."""
    [line] = [each for each in said.splitlines() if each.startswith("waterclock ")]
    return line


def due_of(console: Console, topic: str) -> dict[str, int]:
    listed = console.ask("GET", f"/topics/{topic}/scheduled?values=true")["scheduled"]
    return {each["value"]: each["dueMs"] for each in listed}


def test_a_message_is_published_at_the_readers_time_and_its_command_line_does_the_same(console):
    reader_in(console, "Asia/Kolkata")
    console.ask("POST", "/topics", {"topic": "typed", "ifAbsent": True})
    console.go("topics/typed", "Partitions")
    console.do("press('Publish\u2026')")
    console.do("fill('value', 'tea'); fill('at', '2099-01-02 18:00')")
    console.wait(
        "$('dialog #read-at').innerText.startsWith('Fri 2099-01-02 18:00:00 +05:30 Asia/')"
    )
    line = command(console.submit())
    assert "--at 2099-01-02T18:00:00+05:30 --address localhost:" in line
    due_ms = int(datetime(2099, 1, 2, 12, 30, tzinfo=UTC).timestamp() * 1_000)
    assert due_of(console, "typed") == {"tea": due_ms}

    words = [PROGRAM, *shlex.split(line.replace("tea", "again"))[1:]]
    subprocess.run(words, check=True, capture_output=True, timeout=60)
    assert due_of(console, "typed") == {"tea": due_ms, "again": due_ms}


def test_what_counts_from_now_counts_from_when_it_is_sent(console):
    console.ask("POST", "/topics", {"topic": "soon", "ifAbsent": True})
    console.go("topics/soon", "Partitions")
    console.do("press('Publish\u2026'); fill('value', 'egg'); fill('at', 'in 5 minutes')")
    console.wait("/, in [45] m/.test($('dialog #read-at').innerText)")
    assert "--at 'in 5 minutes' --address" in command(console.submit())
    assert list(due_of(console, "soon")) == ["egg"]


def test_a_time_that_clocks_skip_is_refused_and_one_that_they_show_twice_is_told(console):
    reader_in(console, "Europe/Berlin")
    console.ask("POST", "/topics", {"topic": "dst", "ifAbsent": True})
    console.go("topics/dst", "Partitions")
    console.do("press('Publish\u2026'); fill('value', 'x'); fill('at', '2099-03-29 02:30')")
    console.do("$('dialog button[type=submit]').click()")  # before it was read
    console.wait("$('dialog .notice.bad').innerText.includes('clocks in Europe/Berlin skip it')")
    assert due_of(console, "dst") == {}
    console.do("fill('at', '2099-10-25 02:30')")
    second = "for the second write 2099-10-25T02:30:00+01:00"
    console.wait(f"$('dialog #read-at').innerText.endsWith('{second}')")
    assert "--at 2099-10-25T02:30:00+02:00" in command(console.submit())
    # As typed, the first; and what is there shows which it is.
    console.go("schedule?topic=dst", "2099-10-25")
    console.do("press('Move')")
    console.wait("$('dialog #read-at').innerText.includes('02:30:00 +02:00')")
    assert "--to 2099-10-25T02:30:00+01:00" in command(
        console.submit(at="2099-10-25T02:30:00+01:00")
    )
    first_ms = int(datetime(2099, 10, 25, 0, 30, tzinfo=UTC).timestamp() * 1_000)
    assert due_of(console, "dst") == {"x": first_ms + 3_600_000}


@pytest.mark.parametrize("zone", ["Asia/Kolkata", "America/St_Johns"])
def test_a_group_is_moved_to_the_readers_time(console, zone):
    reader_in(console, zone)
    topic = f"moved-{zone[:4].lower()}"
    console.ask("POST", f"/topics/{topic}/messages", {"value": "a"})
    taken = console.ask("GET", f"/topics/{topic}/messages?group=g&limit=1&wait=5s")["messages"]
    leases = [each["lease"] for each in taken]
    console.ask("POST", f"/topics/{topic}/acks", {"group": "g", "ack": leases, "leave": True})
    console.go(f"groups/{topic}/g", "Generation")
    console.do("press('Seek\u2026'); fill('to', 'time'); fill('since', '2020-02-03 04:05:06')")
    offset = {"Asia/Kolkata": "+05:30", "America/St_Johns": "-03:30"}[zone]
    console.wait(f"$('dialog #read-since').innerText.includes('04:05:06 {offset}')")
    console.shows("1 come again")
    assert f"--to 2020-02-03T04:05:06{offset} --address" in command(console.submit(is_asked=True))
    [after] = console.ask("GET", f"/topics/{topic}/groups/g")["partitions"]
    assert after["committed"] == 0


def test_messages_are_read_from_the_readers_time_on(console):
    reader_in(console, "Asia/Kolkata")
    console.ask("POST", "/topics/past/messages", {"value": "a"})
    hour_ago = datetime.fromtimestamp(SystemClock().now_ms() / 1_000, UTC) - timedelta(hours=1)
    there = hour_ago + timedelta(hours=5, minutes=30)
    console.go("topics/past", "Partitions")
    typed = f"{there:%Y-%m-%d %H:%M:%S}"
    enter = "f.dispatchEvent(new Event('change'))"
    console.do(f"const f = $('[aria-label=\"From time\"]'); f.value = '{typed}'; {enter}")
    console.shows(f"{typed} +05:30 Asia/")
    asked = console.page.value("decodeURIComponent(location.hash)")
    assert f"time={hour_ago:%Y-%m-%dT%H:%M:%S}.000Z" in asked
    console.do(f"const f = $('[aria-label=\"From time\"]'); f.value = 'soonish'; {enter}")
    console.shows("is not a time that is read here")
