"""Lists that a page has whole, or reads part by part: all of them can be reached, and it says so.

What such a cluster or such an audit would answer is put in the place of the node's answers.
"""

import json
from typing import Any

from tests.browser.console import answer

NEXT = "$('[aria-label=\"{}\"] .pager button:last-child').click()"
SAID = "$('[aria-label=\"{}\"] .pager span').innerText"


def replica(name: str, flushed: int, *, is_voter: bool = True, is_linked: bool = True) -> Any:
    known = {"name": name, "disk": "d", "isVoter": is_voter, "isLinked": is_linked}
    return {**known, "flushedEnd": flushed, "lag": 400 - flushed}


def partition(number: int, *replicas: Any, leader: str = "a") -> Any:
    where = {"topic": "wide", "partition": number, "leader": leader, "epoch": 1, "state": "leading"}
    return {**where, "committedEnd": 400, "replicas": [replica("a", 400), *replicas]}


def test_all_partitions_of_a_cluster_are_turned_over_and_found_and_moves_tell_how_far(console):
    learner = replica("c", 100, is_voter=False)
    some = [
        partition(0, learner),
        partition(1, replica("b", 400)),
        partition(2, learner),
        partition(3, replica("b", 400), leader=""),
        partition(4, replica("b", 90, is_linked=False)),
    ]
    rest = [partition(number, replica("b", 400)) for number in range(5, 620)]
    order = {"topic": "wide", "source": "a", "isLeaderOnly": False}
    moves = [
        order | {"partition": 0, "target": "c"},
        order | {"partition": 1, "target": "c"},
        order | {"partition": 5, "target": "b", "isLeaderOnly": True},
    ]
    placement = {"drains": [], "moves": moves}
    answer(console, replication={"partitions": some + rest}, placement=placement)
    console.go("cluster", "1\u2013100 of 620")
    for _ in range(6):
        console.do(NEXT.format("Partitions"))
    console.shows("601\u2013620 of 620")
    assert "start=600" in console.page.value("location.hash")
    console.page.value("void history.back()")
    console.shows("501\u2013600 of 620")
    for text, total in (("nobody", 1), ("away", 1), ("wide/61", 11)):
        console.do(
            "const f = $('[aria-label=\"Filter partitions\"]');"
            f"f.value = '{text}'; f.dispatchEvent(new Event('input'))"
        )
        rows = "document.querySelectorAll('[aria-label=\"replicated partitions\"] tbody tr')"
        console.page.wait(f"{rows}.length === {total}")
    said = "[...document.querySelectorAll('[aria-label=\"what is being moved\"] tbody tr')]"
    how_far = console.page.value(f"{said}.map((each) => each.cells[5].innerText)")
    learns = "learns: 100 of 400 (25 %)"
    assert how_far == [learns, "has not begun", "a leads", learns]


def entries(first: int, count: int) -> str:
    lines = []
    for at in range(first, first + count):
        value = {"time_ms": 1_000 + at, "outcome": "allowed", "operation": f"did-{at}", "count": 1}
        lines.append(json.dumps({"partition": 0, "offset": at, "value": json.dumps(value)}))
    return "\n".join([*lines, json.dumps({"finished": True})]) + "\n"


def test_the_audit_is_read_back_to_where_it_begins(console):
    info = {"partitions": [{"partition": 0, "startOffset": 0, "endOffset": 1_200}]}
    parts = {f"offset={first}&": entries(first, count) for first, count in AUDIT.items()}
    console.do(f"""
      const parts = Object.entries({json.dumps(parts)}), ask = window.fetch;
      window.fetch = async (path, options) => {{
        if (!String(path).includes("/__audit")) return ask(path, options);
        if (!String(path).includes("/partitions/")) return new Response('{json.dumps(info)}');
        return new Response(parts.find(([each]) => String(path).includes(each))[1]);
      }};
    """)
    rights = "import('/console/rights.js')"
    console.page.value(f"{rights}.then((made) => void (made.who().auditTopic = '__audit'))")
    console.do("location.hash = '#/audit'")
    console.shows("700 older ones were not read")
    console.shows("did-1199")
    console.wait(f"{SAID.format('The last entries')} === '1\\u2013100 of 500'")
    console.do("press('Read older ones')")
    console.shows("200 older ones were not read")
    console.do("press('Read older ones')")
    console.wait(f"{SAID.format('The last entries')} === '1\\u2013100 of 1200'")
    assert "older ones" not in console.page.value("document.querySelector('main').innerText")
    for _ in range(11):
        console.do(NEXT.format("The last entries"))
    console.shows("did-0")
    rows = "document.querySelectorAll('[aria-label=audit] tbody tr').length"
    assert console.page.value(rows) == 100


AUDIT = {700: 500, 200: 500, 0: 200}
"""Which parts of it are asked for: from where on, and how many."""
