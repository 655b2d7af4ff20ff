"""A browser, and a node behind the console: one that lets everyone in, and one that does not."""

from collections.abc import Iterator

import pytest

from benchmarks.peers.cache import Absent, npm
from tests.browser.console import Console
from tests.kit.aside import aside
from tests.kit.browser import Page, browser
from tests.server.secure_serving import SecureNode, secure_node
from tests.server.served import running_server

AXE = ("axe-core", "4.14.0")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    folder = tmp_path_factory.mktemp("browser")
    with browser(folder, "--ignore-certificate-errors", "--window-size=1280,900") as page:
        yield page


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    folder = tmp_path_factory.mktemp("node")
    with aside(lambda: running_server(folder)) as it:
        yield it.server.http_port


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureNode]:
    with secure_node(tmp_path_factory.mktemp("secure")) as it:
        yield it


@pytest.fixture(scope="module")
def axe() -> str:
    try:
        return (npm(*AXE) / "axe.min.js").read_text()
    except Absent as absent:
        pytest.skip(f"axe-core is not to be had: {absent}")


def _looking(console: Console) -> Iterator[Console]:
    wanted = {"topic": "orders", "partitions": 2, "ifAbsent": True}
    console.ask("POST", "/topics", wanted)
    console.open()
    yield console
    assert console.page.value("window.wrong") == []


@pytest.fixture
def console(page: Page, node: int) -> Iterator[Console]:
    yield from _looking(Console(page, node))


@pytest.fixture(params=["open", "secure"])
def either(request: pytest.FixtureRequest, page: Page) -> Iterator[Console]:
    """The console of a node that lets everyone in, and that of one that asks who looks."""
    if request.param == "open":
        yield from _looking(Console(page, request.getfixturevalue("node")))
    else:
        secured = request.getfixturevalue("secure")
        yield from _looking(Console(page, secured.port, secured))
