"""The story that docs/console.md tells in pictures, and `make console-story` measures."""

from tests.browser.console import Console
from tests.cli.nodes import running
from tools.console_story import Hand, tell


def test_a_message_is_scheduled_fires_fails_and_is_mended_by_mouse_alone(page, tmp_path):
    with running(tmp_path / "data") as node:
        port = node.shown["http_port"]
        console = Console(page, port)
        console.open()
        tell(Hand(page), port)
        assert console.ask("GET", "/topics/orders/dead-letters")["total"] == 0
        path = "/topics/orders/messages?group=billing&limit=1&wait=20s"
        [mended] = console.ask("GET", path)["messages"]
        assert (mended["value"], mended["key"]) == ('{"order": 7, "total": 12.50}', "ada")
        assert page.value("window.wrong") == []
        page.open("about:blank")
