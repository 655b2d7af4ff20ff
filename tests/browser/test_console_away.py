"""A node that goes away while somebody looks at its console, and comes back: without a reload the
page shows what is now."""

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import waterclock
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


def test_a_node_that_comes_back_as_another_release_says_so_and_a_form_stays(
    page, tmp_path, monkeypatch
):
    with restartable(tmp_path) as (port, (stack, start)):
        console = Console(page, port)
        console.open("topics")
        console.shows(f"v{waterclock.__version__} ")
        console.do("press('New topic'); fill('topic', 'typed')")
        stack.close()
        console.shows("The node does not answer")
        monkeypatch.setattr(waterclock, "__version__", "9.9.9")
        start()
        console.shows("v9.9.9 ")
        assert console.do("return $('dialog [name=topic]').value") == "typed"
        assert page.value("window.wrong") == []
        page.open("about:blank")


def test_who_may_do_less_than_before_is_shown_no_more(console):
    rights = [{"kind": "read", "what": "any", "glob": "*", "groupGlob": "*"}]
    session = console.ask("GET", "/console/session") | {"isAdmin": False, "rights": rights}
    console.go("topics", "New topic")
    console.do(f"""
      const ask = window.fetch, session = {json.dumps(json.dumps(session))};
      window.fetch = async (path, options) => path === "/console/session" ? new Response(session)
        : options?.method === "POST" ? new Response('{{"detail": "no"}}', {{ status: 403 }})
        : ask(path, options);
    """)
    console.do("press('New topic'); fill('topic', 'mine')")
    console.do("$('dialog button[type=submit]').click()")
    console.shows("What you may see or do here has changed")
    console.wait("$('main h1').innerText === 'Topics'")
    assert "New topic" not in console.page.value("document.body.innerText")
