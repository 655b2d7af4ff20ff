"""A node that is slow, or tells much, costs neither itself nor the page more than it must."""

import json

from tests.browser.console import Console
from tests.browser.test_console_unseen import NO_TICKS

SETTLED = "asked.every((each) => each.isTaken || /live/.test(each.path))"
TICK = "[...ticks.values()].forEach((run) => run())"
HANG = """
window.hung = [];
const ask = window.fetch;
window.fetch = (path, options) => String(path) !== WHERE ? ask(path, options)
  : new Promise((done, fail) => {
      hung.push(() => done(ask(path, options)));
      options.signal.addEventListener("abort", () => fail(options.signal.reason));
    });
"""


def hang(console: Console, path: str) -> None:
    """Have the node not answer, until its answers are let go."""
    console.do(HANG.replace("WHERE", json.dumps(path)))


def test_what_was_not_answered_yet_is_not_asked_for_again(console):
    console.page.value(NO_TICKS)
    console.go("audit", "Audit")
    console.go("jobs", "Replays")
    console.wait(f"ticks.size === 1 && {SETTLED}")
    hang(console, "/replays")
    console.do(f"{TICK}; {TICK}")
    assert console.page.value("hung.length") == 1
    console.do("hung[0]()")
    console.wait(f"({TICK}, hung.length === 2)")


def test_who_waits_too_long_for_an_answer_is_told(console):
    hang(console, "/replays")
    console.do("""
      const later = window.setTimeout;
      window.setTimeout = (run, ms) => later(run, ms === 30000 ? 0 : ms);
    """)
    console.go("jobs", "The node does not answer in time.")


def test_what_was_answered_is_forgotten_by_the_signal_that_could_have_stopped_it(console):
    console.ask("POST", "/topics/heard/messages", {"value": "x"})
    listeners = """
      (async (listenersOf) => {
        const { get, messages } = await import("/console/api.js"), stop = new AbortController();
        for (let turn = 0; turn < 3; turn++) {
          await messages("heard", 0, 0, 1, stop.signal);
          await get("/topics", { signal: stop.signal });
        }
        return (listenersOf(stop.signal).abort ?? []).length;
      })(getEventListeners)
    """
    found = console.page.call(
        "Runtime.evaluate",
        expression=listeners,
        includeCommandLineAPI=True,
        awaitPromise=True,
        returnByValue=True,
    )
    assert found["result"].get("value") == 0, found


def test_many_messages_of_a_stream_at_once_are_drawn_at_once(console):
    events = "".join(f'data: {{"message":"number {n}","sentMs":1}}\n\n' for n in range(3_000))
    console.do(f"""
      window.rows = 0;
      const isRow = (each) => each.nodeName === "TR";
      new MutationObserver((all) => {{
        for (const each of all) rows += [...each.addedNodes].filter(isRow).length;
      }}).observe(document.body, {{ childList: true, subtree: true }});
      const ask = window.fetch, events = {json.dumps(events)};
      let is = false;
      window.fetch = (path, options) => String(path).includes("/streams/events") && !is
        ? (is = true, Promise.resolve(new Response(events))) : ask(path, options);
    """)
    console.go("streams/many", "number 2999")
    console.page.wait("document.querySelectorAll('tbody tr').length === 200")
    assert console.page.value("rows") < 1_500


def test_a_schedule_of_a_key_is_read_when_it_is_asked_for_and_not_by_itself(console):
    body = {"value": "x", "key": "rare", "delay": "2h"}
    console.ask("POST", "/topics/keys/messages", body)
    console.page.value(NO_TICKS)
    read = "asked.filter((each) => /keys.scheduled\\?/.test(each.path)).length"
    counted = "asked.filter((each) => each.path.includes('/count') && each.isTaken).length"
    for key, is_read_again in (("", True), ("&key=rare", False)):
        console.go("audit", "Audit")
        console.go(f"schedule?topic=keys{key}", "1 to come")
        console.wait(f"!!$('td.tools') && {SETTLED}")
        before, counts = console.page.value(read), console.page.value(counted)
        console.do(TICK)
        console.wait(f"{counted} > {counts} && {SETTLED}")
        assert (console.page.value(read) > before) is is_read_again
