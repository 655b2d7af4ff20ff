"""Who may do what, as the console has it and as the node does: they must never differ.

Whatever button is shown is pressed, and the request that it would send is held against what the
operation needs. That the node asks for just that is what `tests/server/test_http_rights.py` proves,
of every operation there is.
"""

import json
import random
import re
import shlex
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

import pytest

from tests.browser.console import Console, answer
from tests.kit.browser import Page
from tests.server.secure_serving import SecureNode
from waterclock.security.rights import KINDS, Right, RightKind, Rights
from waterclock.server.http.operations import Operation

MINE, THEIRS = "mine", "theirs"
ABOUT_EACH = (
    "topics/{}", "schedule?topic={}", "groups/{}/g", "dead-letters/{}", "streams/{}",
)  # fmt: skip
PLACES = (
    "", "topics", "schedule", "groups", "dead-letters", "streams", "cluster", "jobs", "audit",
    *(place.format(name) for place in ABOUT_EACH for name in (MINE, THEIRS)),
)  # fmt: skip
SETTLED = """
document.querySelectorAll("main h1:not([data-old])").length === 1
&& asked.every((call) => call.isTaken || /console.live|events|ends/.test(call.path))
"""
OLD = "document.querySelector('main h1').dataset.old = 1"
PRESS_ALL = """
(() => {
  const lines = [];
  const boxes = () => [...document.querySelectorAll("dialog[open]")];
  const inside = (where) => [...where.querySelectorAll("button")].filter((each) => !each.disabled);
  const isAction = (each) => !each.closest(".choice, th, .pager, .bars");
  const note = (box) => {
    for (const field of box.querySelectorAll("[name]")) {
      if (["topic", "stream", "name"].includes(field.name)) field.value = "mine";
    }
    box.querySelector("form").dispatchEvent(new Event("input", { bubbles: true }));
    lines.push([...box.querySelectorAll(".same pre")].at(-1).textContent);
  };
  const press = (button, next) => {
    button.click();
    const box = boxes().at(-1);
    if (!box) return;
    if (box.querySelector(".same")) note(box);
    else if (next) inside(box).forEach((_, at) => { again(button, at); });
    boxes().forEach((each) => each.close());
  };
  const again = (button, at) => {
    boxes().forEach((each) => each.close());
    button.click();
    const choice = inside(boxes().at(-1))[at];
    if (choice.textContent !== "Close") press(choice, false);
  };
  inside(document.querySelector("main")).filter(isAction).forEach((each) => press(each, true));
  return lines;
})()
"""


class Call(NamedTuple):
    """What a button would do, to what."""

    operation: str
    kind: RightKind | None
    topic: str | None
    stream: str | None
    group: str | None

    def is_allowed(self, rights: Rights) -> bool:
        assert self.kind is not None, self
        return rights.allows(self.kind, topic=self.topic, stream=self.stream, group=self.group)


def requests_of(line: str) -> Iterator[tuple[str, str, Any]]:
    """Yield what a line of curl would send: method, path, body."""
    words = shlex.split(line)
    while "curl" in words:
        words = words[words.index("curl") + 1 :]
        until = words.index("|") if "|" in words else len(words)
        own = words[:until]
        [url] = [word for word in own if word.startswith("http")]
        body = json.loads(own[own.index("-d") + 1]) if "-d" in own else None
        method = own[own.index("-X") + 1] if "-X" in own else "POST" if body is not None else "GET"
        yield method, urlsplit(url).path, body


def call_of(operations: Iterable[Operation], method: str, path: str, body: Any) -> Call:
    """Return what a request is in the table of the node."""
    for each in operations:
        pattern = re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", each.path)
        found = re.fullmatch(pattern, path)
        if found is None or each.method != method:
            continue
        named = {name: unquote(text) for name, text in found.groupdict().items()}
        given = {**(body if isinstance(body, dict) else {}), **named}
        given["stream_id"] = given.get("streamId")
        needs = each.needs
        # A recurrence and a replay are of a topic, whatever their names: here, of the one it is of.
        topic, stream, group = (
            None if field is None else str(given.get(field)) if given.get(field) else ""
            for field in (needs.topic, needs.stream, needs.group)
        )
        return Call(each.name, needs.kind, topic, stream, group)
    raise AssertionError(f"the node has no {method} {path}")


@pytest.fixture(scope="module")
def filled(secure: SecureNode) -> SecureNode:
    """A node that has something of everything, twice."""

    def ask(method: str, path: str, body: Any = None) -> Any:
        answered = secure.ask(method, path, secure.admin, body)
        assert answered.status < 300, answered
        return json.loads(answered.body.partition(b"\n")[0] or b"null")

    for name in (MINE, THEIRS):
        messages = f"/topics/{name}/messages"
        ask("POST", messages, {"value": "failed"})
        ask("POST", messages, {"value": "later", "delay": "10h"})
        ask("PUT", f"/recurrences/{name}", {"topic": name, "every": "9h", "value": "x"})
        ask("POST", "/streams/send", {"streamId": name, "message": "x"})
        ask("GET", f"/topics/{name}/replay?name={name}")
        taken = ask("GET", f"{messages}?group=g&limit=1&wait=9s")["messages"]
        refused = {"group": "g", "reject": [each["lease"] for each in taken], "leave": True}
        ask("POST", f"/topics/{name}/acks", refused)
    return secure


def shown(page: Page, node: SecureNode, bearer: str, rights: Rights) -> set[Call]:
    """Go everywhere as somebody; return all that the buttons there would do."""
    console = Console(page, node.port, node)
    console.bearer = bearer
    console.open("streams/none")  # so that each place is another one
    found: set[Call] = set()
    for place in PLACES:
        name = next((each for each in (THEIRS, MINE) if each in place), "")
        sees = rights.allows("read", topic=name or None, stream=None)
        page.value(f"void ({OLD}, asked.length = 0, location.hash = {json.dumps('#/' + place)})")
        page.wait(SETTLED)
        if sees and place.startswith(("schedule?", "dead-letters/", "topics/")):
            page.wait("document.querySelectorAll('main tbody tr').length > 0")
            page.wait(SETTLED)  # the rows of its other tables come with other answers
        lines = page.value(PRESS_ALL)
        for line in lines:
            for method, path, body in requests_of(line):
                found.add(call_of(node.server.operations, method, path, body))
        asked = page.value("asked")
        refused = [call for call in asked if call["status"] in (401, 403)]
        assert refused == [], f"the page {place!r} asks for what is refused"
        for call in asked:
            call_of(node.server.operations, call["method"], urlsplit(call["path"]).path, None)
    assert page.value("window.wrong") == []
    return found


ALL_THAT_IS_DONE = {
    "cancel", "createTopic", "deleteGroup", "deleteRecurrence", "deleteReplay", "deleteStream",
    "deleteTopic", "pauseRecurrence", "publish", "purgeDeadLetters", "putRecurrence", "redrive",
    "reschedule", "resizeStream", "seekGroup", "send", "updateTopic",
}  # fmt: skip
"""By buttons, on a node that is alone: in a cluster, nodes are drained and replicas moved, too."""


@pytest.fixture(scope="module")
def of_admin(page: Page, filled: SecureNode) -> set[Call]:
    rights = Rights([Right.parse("admin", "*")])
    return shown(page, filled, filled.admin, rights)


def test_who_may_do_everything_is_shown_everything(of_admin):
    assert {call.operation for call in of_admin} == ALL_THAT_IS_DONE


@pytest.mark.parametrize("also", ["", "read"])
@pytest.mark.parametrize("kind", ["publish", "consume", "schedule"])
def test_who_may_do_one_thing_is_shown_that_and_no_more(page, filled, of_admin, kind, also):
    kinds = [kind, also] if also else [kind]
    rights = Rights(Right.parse(each, MINE) for each in kinds)
    bearer = filled.add("one", **dict.fromkeys(kinds, MINE))

    found = shown(page, filled, bearer, rights)

    assert {call for call in found if not call.is_allowed(rights)} == set()
    if also:  # who may not read a list sees no buttons beside its rows
        assert found == {call for call in of_admin if call.is_allowed(rights)}


NAMES = ("a", "ab", "b", "a.b", "a.b.a", "__audit", "__", "", "*", "a:b")
GLOBS = ("*", "a*", "*a", "a*b*a", "a.*", "a", "__*", "*.*", "stream:a*", "topic:a*", "stream:*:*")
ABOUT: tuple[tuple[str, ...], ...] = ((), ("topic",), ("stream",), ("topic", "group"), ("group",))


def some_right(rng: random.Random) -> Right:
    kind, text = rng.choice(KINDS[:4]), rng.choice(GLOBS)
    if kind == "consume" and not text.startswith("stream:") and rng.random() < 0.5:
        text += ":" + rng.choice(["*", "a*", "b"])
    return Right.parse(kind, text)


def console_says(page: Page, rights: list[Right], questions: list[Any]) -> Any:
    listed = [
        {"kind": each.kind, "what": each.what, "glob": each.glob, "groupGlob": each.group_glob}
        for each in rights
    ]
    return page.value(
        "import('/console/rights.js').then(({ is, may }) => {"
        f"is({{ isAdmin: false, rights: {json.dumps(listed)} }});"
        f"return {json.dumps(questions)}.map(([kind, about]) => may(kind, about)); }})"
    )


def test_who_may_only_read_is_shown_no_way_to_change_anything(page, filled):
    rights = Rights([Right.parse("read", MINE)])

    found = shown(page, filled, filled.add("one", read=MINE), rights)

    assert {call.operation for call in found} == {"deleteReplay"}  # what only its reader minds


def test_the_console_and_the_node_agree_on_what_a_right_covers(page, node):
    rng = random.Random(20)
    Console(page, node).open()
    for _ in range(200):
        rights = [some_right(rng) for _ in range(rng.randrange(1, 4))]
        questions = [
            (rng.choice(KINDS[:4]), {what: rng.choice(NAMES) for what in about})
            for about in ABOUT * 4
        ]
        node_says = [Rights(rights).allows(kind, **about) for kind, about in questions]
        assert console_says(page, rights, questions) == node_says, (rights, questions)


def test_who_chooses_another_topic_on_a_page_is_shown_what_they_may_do_with_that(page, filled):
    console = Console(page, filled.port, filled)
    console.bearer = filled.add("one", read=f"{MINE} {THEIRS}", publish=MINE)
    console.open(f"schedule?topic={MINE}")
    buttons = "[...document.querySelectorAll('main button')]"
    publish = f"{buttons}.some((each) => each.innerText === 'Publish…')"
    console.wait(publish)
    for topic, may in ((THEIRS, False), (MINE, True), ("", True)):
        console.wait(f"[...$('select').options].some((each) => each.value === '{topic}')")
        chosen = f"$('select').value = '{topic}'; $('select').dispatchEvent(new Event('change'))"
        console.do(chosen)
        assert page.value(publish) is may, topic
    assert page.value("window.wrong") == []


def test_nobody_is_offered_to_publish_what_only_the_node_writes(page, filled):
    console = Console(page, filled.port, filled)
    console.open("topics/__audit")
    console.wait("!!$('td button.mono')")
    console.do("$('td button.mono').click()")
    console.wait("!!$('dialog .message')")
    buttons = page.value("[...document.querySelectorAll('button')].map((e) => e.innerText)")
    assert [each for each in buttons if each.startswith("Publish")] == []
    assert page.value("window.wrong") == []


MEMBERS = [
    {"name": name, "state": state, "level": 1, "http": "", "zone": "", "isSelf": name == "a"}
    for name, state in (("a", "alive"), ("b", "alive"), ("c", "failed"))
]
REPLICA = {"name": "a", "isVoter": True, "isLinked": True, "lag": 0, "flushedEnd": 4}
PARTITION = {"topic": MINE, "partition": 0, "leader": "a", "epoch": 1, "committedEnd": 4}


@pytest.mark.parametrize(
    ("kind", "does"),
    [("admin", {"/cluster/drain", "/cluster/move", "/cluster/replace"}), ("read", set())],
)
def test_a_cluster_is_changed_only_by_who_may_do_everything(page, filled, kind, does):
    console = Console(page, filled.port, filled)
    console.bearer = filled.add("one", **{kind: "*"})
    console.open()
    replication = {"partitions": [{**PARTITION, "factor": 1, "replicas": [REPLICA]}]}
    answer(console, replication=replication, members={"members": MEMBERS})
    page.value("import('/console/rights.js').then((m) => void (m.who().isClustered = true))")
    console.go("cluster", "failed")
    console.shows(MINE)

    lines = page.value(PRESS_ALL)

    assert {path for line in lines for _, path, _ in requests_of(line)} == does
    assert page.value("window.wrong") == []
