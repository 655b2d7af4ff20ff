"""A node that goes away while somebody looks at its console, and comes back: without a reload the
page shows what is now."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.peers.server import free_port
from tests.browser.console import Console
from tests.kit.aside import aside
from tests.server.served import running_server
from waterclock.model.sections import ClusterConfig


@contextmanager
def restartable(folder: Path) -> Iterator[tuple[int, Any]]:
    """A node that can be taken away and started again at the same port."""
    port = free_port()
    with ExitStack() as stack:

        def start() -> None:
            cluster = ClusterConfig(grpc_port=0, http_port=port)
            stack.enter_context(aside(lambda: running_server(folder, cluster=cluster)))

        start()
        yield port, (stack, start)


def test_a_node_that_dies_and_comes_back_is_shown_again_without_a_reload(page, tmp_path):
    with restartable(tmp_path) as (port, (stack, start)):
        console = Console(page, port)
        console.ask("POST", "/topics", {"topic": "before"})
        console.open("topics")
        console.shows("before")
        stack.close()
        console.shows("The node does not answer")
        start()
        console.ask("POST", "/topics", {"topic": "after"})
        console.shows("after")
        page.wait("document.querySelector('.away').classList.contains('hidden')")
        assert page.value("window.wrong") == []
        page.open("about:blank")


def test_a_page_that_is_chosen_while_the_node_is_away_is_there_when_it_is_back(page, tmp_path):
    with restartable(tmp_path) as (port, (stack, start)):
        console = Console(page, port)
        console.ask("POST", "/topics/letters/messages", {"value": "dear reader"})
        console.open()
        stack.close()
        console.shows("The node does not answer")
        console.do("press('Topics')")
        console.wait("$('main h1').innerText === 'Topics'")
        start()
        console.shows("letters")
        page.wait("document.querySelector('.away').classList.contains('hidden')")
        stack.close()
        console.shows("The node does not answer")
        console.do("press('letters')")
        console.wait("$('main h1').innerText === 'letters'")
        start()
        console.shows("dear reader")
        assert page.value("window.wrong") == []
        page.open("about:blank")
