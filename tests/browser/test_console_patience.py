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


def test_what_took_long_to_count_is_not_counted_again_before_twenty_times_as_long(console):
    """The node has all the rest of its time for others; what the reader asks for comes at once."""
    console.ask("POST", "/topics/slow/messages", {"value": "x", "delay": "2h"})
    console.page.value(NO_TICKS)
    console.go("audit", "Audit")
    console.do("""
      const ask = window.fetch;
      window.fetch = async (path, options) => {
        const answer = await ask(path, options);
        if (/scheduled.count/.test(path)) clock += 1000;
        return answer;
      };
    """)
    console.go("schedule?topic=slow", "the node took 1 s to answer, and is asked again in 20 s.")
    read = "asked.filter((each) => /slow.scheduled/.test(each.path)).length"
    again = "asked.filter((each) => each.path.startsWith('/recurrences')).length"
    console.wait(f"!!$('td.tools') && {SETTLED}")
    assert console.page.value("clock") == 1_000
    before, others = console.page.value(read), console.page.value(again)
    console.do(f"clock = 20_999; {TICK}")
    console.wait(f"{again} > {others} && {SETTLED}")
    assert console.page.value(read) == before
    console.do(f"clock = 21_000; {TICK}")
    console.wait(f"{read} === {before} + 2 && {SETTLED}")
    assert console.page.value("clock") == 22_000
    console.do("press('By hour')")
    console.wait(f"{read} === {before} + 4 && {SETTLED}")


HELD = """
window.held = {};
const answers = Object.entries(ANSWERS), ask = window.fetch;
window.fetch = (path, options) => {
  const found = answers.find(([each]) => String(path) === each);
  if (!found) return ask(path, options);
  const answer = new Response(JSON.stringify(found[1]));
  return new Promise((done) => { held[found[0]] = () => done(answer); });
};
"""
"""Each answer comes when its turn is called, by the path."""
SETTLE = "new Promise((done) => setTimeout(done)).then(() => true)"


def test_a_page_of_streams_that_comes_late_is_not_shown_in_place_of_the_next(console):
    first, second = (f"/streams?limit=50&start={start}" for start in (0, 50))
    pages = {first: {"streams": ["one"], "next": 50}, second: {"streams": ["two"], "next": 0}}
    console.page.value(NO_TICKS)
    console.do(HELD.replace("ANSWERS", json.dumps(pages)))
    console.do("location.hash = '#/streams'")
    console.wait(f"!!held['{first}']")
    console.do(f"held['{first}']()")
    console.wait("$('tbody')?.innerText.includes('one')")
    console.do(f"{TICK}; press('Next \u203a'); held['{second}']()")
    console.wait("$('tbody').innerText.includes('two')")
    console.do(f"held['{first}']()")
    console.page.value(SETTLE)
    console.wait(SETTLED)
    assert "one" not in console.do("return $('tbody').innerText")


def test_an_hour_that_comes_late_is_not_shown_in_place_of_the_day(console):
    hour, day = "/history?range=hour", "/history?range=day"
    past = {"stepMs": 1_000, "endMs": 1_000, "series": {}}
    answers = {hour: past | {"unreachable": ["slow"]}, day: past | {"unreachable": ["swift"]}}
    console.go("audit", "Audit")
    console.do(HELD.replace("ANSWERS", json.dumps(answers)))
    console.go("", "Overview")
    console.wait(f"!!held['{hour}']")
    console.do(f"press('Day'); held['{day}']()")
    console.shows("The plots lack what swift did")
    console.do(f"held['{hour}']()")
    console.page.value(SETTLE)
    assert "swift" in console.do("return $('main').innerText")
