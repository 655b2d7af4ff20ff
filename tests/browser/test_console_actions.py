"""What can be done in the console, each done in a real browser: on a node that lets everyone in,
and on one that asks who looks. The command lines that the forms show are looked at, too."""

import json

import pytest

from tests.browser.console import Console


@pytest.fixture
def console(either: Console) -> Console:
    return either


def test_a_message_is_made_published_seen_and_its_digits_stay(console):
    console.go("topics", "New topic")
    console.do("press('New topic')")
    console.do("fill('topic', \"it's new\"); $('dialog button[type=submit]').click()")
    console.wait("$('dialog .notice.bad').innerText.includes('topic')")
    said = console.do("return $('dialog .same').innerText")
    assert "waterclock topics create 'it'\\''s new'" in said
    console.submit(topic="letters", partitions="2")
    console.shows("No message here.")
    console.do("press('Follow live')")
    console.shows("waiting for messages")
    console.do("press('Publish…')")
    console.do("fill('headers', 'nonsense'); $('dialog button[type=submit]').click()")
    console.wait("$('dialog .notice.bad').innerText.includes('write name=value')")
    # What a client wrote is no option of the command that the reader pastes.
    console.do("fill('headers', ''); fill('key', '-k'); fill('value', '--file=/etc/passwd')")
    said = console.do("return $('dialog .same').innerText")
    here = f"--address localhost:{console.ask('GET', '/console/session')['grpcPort']}"
    assert f"waterclock publish --key -k {here} -- letters --file=/etc/passwd" in said
    said = console.submit(value='{"n": 12345678901234567890}', key="ada", headers="a=b=c")
    assert "-H a=b=c" in said
    assert "/topics/letters/messages" in said
    console.shows("12345678901234567890")
    console.do("$('td button.plain').click()")
    console.wait("$('dialog .message').innerText.includes('\"n\": 12345678901234567890')")


def waiting(console: Console, topic: str) -> list[str]:
    """Give the values of what is to come."""
    found = console.ask("GET", f"/topics/{topic}/scheduled?values=true")["scheduled"]
    return [each["value"] for each in found]


def test_what_is_scheduled_is_fired_moved_and_cancelled(console):
    for number in range(3):
        body = {"value": f"wake {number}", "key": f"k{number}", "delay": "2h"}
        console.ask("POST", "/topics/clock/messages", body)
    console.go("schedule?topic=clock", "wake 2")

    def row(key: str) -> str:
        return f"[...document.querySelectorAll('tr')].find((r) => r.innerText.includes('{key}'))"

    console.do(f"press('Fire now', {row('wake 0')})")
    said = console.submit()
    assert "waterclock schedule move clock" in said
    console.do(f"press('Cancel', {row('wake 1')})")
    console.submit()
    console.do(f"press('Move', {row('wake 2')})")
    console.submit(at="2099-01-02T03:04:05")
    console.page.wait("!document.body.innerText.includes('wake 1')")
    console.shows("2099-01-02")
    console.until(lambda: waiting(console, "clock") == ["wake 2"])
    console.do(f"press('Fire now', {row('wake 2')})")
    assert "Due 2099-01-02 03:04:05" in console.do("return $('dialog').innerText")
    console.do("press('Back')")

    console.do("press('New…')")
    console.do("fill('rule', '0 9 * * MON'); fill('zone', 'Europe/Berlin')")
    console.shows("Next ten times")
    console.submit(name="weekly", topic="clock", value="report")
    console.wait(
        "[...document.querySelectorAll('main button')].some((e) => e.textContent === 'weekly')"
    )
    console.do("press('weekly')")
    console.wait("document.querySelectorAll('dialog li').length === 10")
    assert console.do("return $('dialog li').innerText").startswith("Mon")
    console.do("press('Close')")
    console.do(f"press('Pause', {row('weekly')})")
    assert "waterclock schedule pause weekly" in console.submit()
    console.shows("paused")
    [kept] = console.ask("GET", "/recurrences?topic=clock")["recurrences"]
    assert (kept["isPaused"], kept["nextMs"], kept["message"]["value"]) == (True, 0, "report")
    console.do(f"press('Resume', {row('weekly')})")
    assert "/recurrences/weekly/resume" in console.submit()
    console.page.wait("!document.querySelector('main').innerText.includes('paused')")
    console.do(f"press('End', {row('weekly')})")
    console.submit()
    console.page.wait("!document.querySelector('main').innerText.includes('weekly')")


def refused(console: Console, topic: str, count: int) -> None:
    """Have messages that a worker has refused, and look at them."""
    messages = [{"value": f"bad {n}", "key": "k"} for n in range(count)]
    console.ask("POST", f"/topics/{topic}/messages", {"messages": messages})
    leases: list[str] = []
    while len(leases) < count:
        taken = console.ask("GET", f"/topics/{topic}/messages?group=g&limit={count}&wait=5s")
        leases += [each["lease"] for each in taken["messages"]]
    console.ask("POST", f"/topics/{topic}/acks", {"group": "g", "reject": leases, "leave": True})
    console.go(f"dead-letters/{topic}", f"bad {count - 1}")


def test_some_dead_letters_are_redriven_some_purged_and_then_all_that_are_left(console):
    choose = "[...document.querySelectorAll('tbody input')].slice(0, 2).forEach((e) => e.click())"
    refused(console, "post", 6)
    for press, verb, left in (("Redrive 2…", "redrive", 4), ("Purge 2…", "purge", 2)):
        console.do(choose)
        console.do(f"press({press!r})")
        assert f"waterclock dlq {verb} post 0/" in console.submit()
        console.page.wait(f"document.querySelectorAll('tbody tr').length === {left}")
    console.do("press('Redrive all…')")
    assert "waterclock dlq redrive post --all" in console.submit()
    console.shows("No message of this topic has failed for good.")
    again = "/topics/post/messages?group=h&limit=20&wait=5s&start=earliest"
    values = [each["value"] for each in console.ask("GET", again)["messages"]]
    assert sorted(values) == sorted(
        [*(f"bad {n}" for n in range(6)), *(f"bad {n}" for n in (0, 1, 4, 5))]
    )


def test_groups_and_replays_are_forgotten_and_streams_and_topics_deleted(console):
    console.ask("POST", "/topics/gone/messages", {"value": "x"})
    polled = console.ask("GET", "/topics/gone/messages?group=g&limit=1&wait=5s&start=earliest")
    done = {"group": "g", "ack": [each["lease"] for each in polled["messages"]], "leave": True}
    console.ask("POST", "/topics/gone/acks", done)
    console.ask("GET", "/topics/gone/partitions/0/messages?count=1", is_lines=True)
    console.ask("GET", "/topics/gone/replay?name=past", is_lines=True)
    console.ask("POST", "/streams/send", {"streamId": "gone", "message": 1})

    console.go("groups/gone/g", "Generation")
    console.do("press('Forget…')")
    assert "waterclock groups delete gone g" in console.submit()
    console.page.wait("document.querySelector('main h1').innerText === 'Groups'")
    assert console.ask("GET", "/topics/gone/groups")["groups"] == []
    console.go("jobs", "past")
    console.do("press('Forget')")
    assert "waterclock replays delete past" in console.submit()
    console.shows("No replay has a name")
    console.go("streams/gone", "Waiting senders")
    console.do("press('Delete…')")
    assert "waterclock streams delete gone" in console.submit()
    console.page.wait("document.querySelector('main h1').innerText === 'Streams'")
    assert "gone" not in console.ask("GET", "/streams")["streams"]
    console.go("topics/gone", "Partitions")
    console.do("press('Delete…')")
    assert "waterclock topics delete gone" in console.submit(name="gone")
    console.page.wait("document.querySelector('main h1').innerText === 'Topics'")
    topics = console.ask("GET", "/topics")["topics"]
    assert "gone" not in [each["topic"] for each in topics]


def test_a_message_of_a_stream_is_sent_and_shown_with_all_of_its_digits(console):
    console.go("streams/digits", "following")
    typed = '{"n": 12345678901234567890, "text": "a, \\"b\\": {", "one": 1.0}'
    console.do("press('Send\u2026')")
    said = console.submit(message=typed)
    assert f'"message":{typed},"timeoutSeconds":0' in said
    assert f"waterclock send digits '{typed}'" in said
    console.wait(f"$('tbody summary')?.innerText === {json.dumps(typed)}")
    oldest = "/streams/receive?streamId=digits&resumeToken=earliest&timeoutSeconds=5"
    assert console.ask("GET", oldest)["message"] == json.loads(typed)
    console.do("press('Send\u2026')")
    said = console.submit(message="no JSON: 0x1")
    assert '"message":"no JSON: 0x1"' in said
    console.wait("$('tbody summary').innerText === '\"no JSON: 0x1\"'")


def test_dead_letters_are_edited_redriven_and_purged(console):
    refused(console, "mail", 4)

    # Somebody else is faster: it is not published twice.
    console.do("press('Show')")
    console.do("press('Edit and redrive…')")
    faster = {"positions": [{"partition": 0, "offset": 0}]}
    console.ask("POST", "/topics/mail/dead-letters/redrive", faster)
    console.submit(value="lost")
    console.shows("It was off the list before")
    console.page.wait("!document.querySelector('main').innerText.includes('bad 0')")
    console.do("press('Show')")
    console.do("press('Edit and redrive…')")
    said = console.submit(value="it's mended")
    [curl] = [line for line in said.splitlines() if line.startswith("curl ")]
    body = '{"positions":[{"partition":0,"offset":1}],"value":"it' + r"'\''" + 's mended"}'
    assert f"/topics/mail/dead-letters/redrive -d '{body}'" in curl
    here = f"--address localhost:{console.ask('GET', '/console/session')['grpcPort']}"
    assert f"waterclock dlq redrive mail 0/1 --value 'it'\\''s mended' {here}" in said
    console.page.wait("!document.querySelector('main').innerText.includes('bad 1')")
    console.do("$('tbody input').click()")
    console.do("press('Redrive 1…')")
    console.submit()
    console.page.wait("!document.querySelector('main').innerText.includes('bad 2')")
    console.do("press('Purge all…')")
    said = console.submit()
    assert "waterclock dlq purge mail --all" in said
    console.shows("No message of this topic has failed for good.")
    again = console.ask("GET", "/topics/mail/messages?group=h&limit=9&wait=5s&start=earliest")
    values = [each["value"] for each in again["messages"]]
    refused_ones = [f"bad {number}" for number in range(4)]
    assert sorted(values) == sorted([*refused_ones, "bad 0", "it's mended", "bad 2"])


def test_a_group_is_moved_with_a_preview_and_a_stream_is_followed(console):
    console.ask("POST", "/topics/jobs/messages", {"messages": [{"value": "a"}, {"value": "b"}]})
    taken = console.ask("GET", "/topics/jobs/messages?group=g&limit=9&wait=5s")["messages"]
    leases = [each["lease"] for each in taken]
    console.ask("POST", "/topics/jobs/acks", {"group": "g", "ack": leases, "leave": True})
    console.go("groups/jobs/g", "nobody")
    console.do("press('Seek…')")
    console.shows("come again")
    assert "--to latest" in console.submit(is_asked=True, to="latest")

    console.ask("POST", "/streams/send", {"streamId": "chat", "message": {"token": "one"}})
    console.go("streams/chat", "Waiting senders")
    console.do("press('Follow live')")
    console.shows("one")
    console.do("press('Send…')")
    console.submit(message='{"token": "two"}')
    console.shows("two")


def test_a_stream_is_resized_and_a_topic_gets_other_settings(console):
    console.ask("POST", "/streams/send", {"streamId": "ring", "message": "one"})
    console.go("streams/ring", "Waiting senders")
    console.do("press('Resize…')")
    assert "waterclock streams resize ring 7" in console.submit(size="7")
    console.shows("Resized")
    assert console.ask("GET", "/streams/ring")["inMemoryStreamSize"] == 7

    console.ask("POST", "/topics", {"topic": "grown", "partitions": 1, "ifAbsent": True})
    console.go("topics/grown", "Partitions")
    console.page.wait("document.body.innerText.includes('Settings…')")
    configured = console.ask("GET", "/topics/grown")["effective"]
    console.shows(f"Retries\n{configured['retriesMax']} as configured")
    console.do("press('Settings…')")
    hint = console.do("return $('dialog [name=timeout]').placeholder")
    assert hint == f"{configured['ackTimeoutMs'] // 1_000}, as configured"
    console.do("$('dialog button[type=submit]').click()")
    console.wait("$('dialog .notice.bad').innerText === 'Nothing is changed yet.'")
    said = console.submit(partitions="3", retention="48", retries="5")
    assert "waterclock topics update grown --partitions 3 --retention 48h --retries 5" in said
    console.shows("Changed")
    changed = console.ask("GET", "/topics/grown")
    assert len(changed["partitions"]) == 3
    settings = changed["settings"]
    assert (settings["retentionMs"], settings["retriesMax"]) == (48 * 3_600_000, 5)

    # The others, and only what is another now than it was.
    console.shows("2 d 0 h")
    console.do("press('Settings…')")
    said = console.submit(retention="0.5", size="64", timeout="1.5", compacted=True, waits=True)
    assert said.count(
        " --retention 1800s --retention-bytes 64MiB --ack-timeout 1500ms --compacted"
        " --wait-for-groups --address"
    )
    console.shows("64 MiB")
    now = console.ask("GET", "/topics/grown")
    assert now["settings"] == now["settings"] | {
        "retentionMs": 1_800_000,
        "retentionBytes": 64 << 20,
        "retentionWaitForGroups": True,
        "isCompacted": True,
        "retriesMax": 5,
        "ackTimeoutMs": 1_500,
    }
    console.shows("yes, by key")
    main = console.page.value("document.querySelector('main').innerText")
    assert "as configured" not in main
