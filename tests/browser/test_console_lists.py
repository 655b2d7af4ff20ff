"""Lists that are longer than a page of the console: the node cuts them, the reader turns over."""

from concurrent.futures import ThreadPoolExecutor

from tests.browser.console import Console
from tests.kit.aside import aside
from tests.server.served import running_server

BACK, ON = "$('.pager button').click()", "$('.pager button:last-child').click()"


def is_at(console: Console, first: int, last: int, total: int) -> None:
    """Wait until the list stands there, with as many rows as it says."""
    console.wait(f"$('.pager span').innerText === '{first}\\u2013{last} of {total}'")
    console.wait(f"document.querySelectorAll('tbody tr').length === {last - first + 1}")


def topics() -> list[dict[str, str]]:
    return [{"topic": f"t{number:04}"} for number in range(1_000)]


def first_poll(number: int) -> str:
    return f"/topics/t{number % 10:04}/messages?group=g{number:04}&limit=1&wait=0s"


def test_a_thousand_topics_and_groups_are_paged_through(page, tmp_path):
    with aside(lambda: running_server(tmp_path)) as it:
        console = Console(page, it.server.http_port)
        # Side by side topics share fsyncs, and groups the time in which their members may come.
        with ThreadPoolExecutor(16) as pool:
            list(pool.map(lambda topic: console.ask("POST", "/topics", topic), topics()))
            list(pool.map(lambda path: console.ask("GET", path), map(first_poll, range(1_000))))
        console.open("topics")
        is_at(console, 1, 50, 1_000)
        console.do(ON)
        is_at(console, 51, 100, 1_000)
        console.do(ON)
        is_at(console, 101, 150, 1_000)
        console.shows("t0100")
        assert "start=100" in page.value("location.hash")
        console.do(BACK)
        is_at(console, 51, 100, 1_000)
        console.go("groups", "g0049")
        is_at(console, 1, 50, 1_000)
        console.do(ON)
        is_at(console, 51, 100, 1_000)
        console.go("groups?start=950", "g0999")
        is_at(console, 951, 1_000, 1_000)
        assert page.value("window.wrong") == []
        page.open("about:blank")


def test_a_group_that_nobody_is_in_is_marked_once_it_is_behind(console):
    console.ask("POST", "/topics/left/messages", {"value": "x"})
    taken = console.ask("GET", "/topics/left/messages?group=g&limit=1&wait=9s&start=earliest")
    done = {"group": "g", "ack": [each["lease"] for each in taken["messages"]], "leave": True}
    console.ask("POST", "/topics/left/acks", done)
    console.go("groups?filter=left", "none")
    console.wait("!!$('tbody .dim')")
    console.ask("POST", "/topics/left/messages", {"value": "y"})
    console.wait("!!$('tbody .warn')")
