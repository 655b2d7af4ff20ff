"""The console of a node that asks for credentials: whoever looks sees and does what they may."""

import json
from urllib.parse import quote

from tests.browser.console import EVIL, SERIOUS, Console, narrow
from tests.server.secure_serving import secure_node

GO_ON = """
new Promise((done) => { addEventListener("hashchange", done); location.hash = "#/groups"; })
  .then(() => true)
"""
AUDIT_READ = "asked.map((one) => one.path).filter((path) => path.includes('/__audit/p'))"
"""What of the audit the page has asked for."""


def finds_nothing(console: Console) -> None:
    """Have axe look at the page in both themes, wide and narrow."""
    for theme in ("light", "dark", "dark, on a phone", "light, on a phone"):
        colour, _, where = theme.partition(", ")
        console.page.value(f"void (document.documentElement.dataset.theme = '{colour}')")
        if where:
            narrow(console)
        assert console.page.value(SERIOUS) == []
    assert console.page.value("document.documentElement.scrollWidth") == 390
    console.page.call("Emulation.clearDeviceMetricsOverride")


def test_a_secure_node_asks_who_looks_and_shows_only_what_they_may_do(page, tmp_path, axe):
    with secure_node(tmp_path / "secure") as node:
        for topic in ("mine.a", "theirs.b"):
            node.ask("POST", "/topics", node.admin, {"topic": topic})
        reader = node.add("reader", read="mine.*").removeprefix("Bearer ")
        console = Console(page, node.port, node)
        console.bearer = ""
        console.open()
        console.shows("This node asks who you are.")
        console.page.value(f"void ({axe})" if axe.startswith("(") else axe + ";0")
        finds_nothing(console)
        login = "const f = $('textarea'); f.value = {}; $('form button').click()"
        console.do(login.replace("{}", "'nonsense'"))
        console.shows("no credential")
        finds_nothing(console)
        console.do(login.replace("{}", json.dumps(reader)))
        console.shows("reader")
        console.go("topics", "mine.a")
        assert "theirs.b" not in page.value("document.body.innerText")
        assert "New topic" not in page.value("document.body.innerText")
        console.go("topics/mine.a", "Partitions")
        buttons = page.value(
            "[...document.querySelectorAll('main button')].map((b) => b.innerText)"
        )
        assert not {"Publish…", "Settings…", "Delete…"} & set(buttons)
        assert page.value("document.cookie") == ""
        assert "Audit" not in page.value("document.querySelector('nav').innerText")

        for _ in range(2):  # a credential ends, and so does the one after it
            reader = node.add("reader", read="mine.*").removeprefix("Bearer ")
            console.shows("not good any more")
            console.do(login.replace("{}", json.dumps(reader)))
            console.shows("Log out")
        console.do("press('Log out')")
        console.shows("This node asks who you are.")
        page.value(GO_ON)  # who is logged out goes nowhere
        assert not page.value("asked.some((one) => one.path.includes('view=groups'))")
        console.do(login.replace("{}", json.dumps(node.admin.removeprefix("Bearer "))))
        console.shows("Audit")
        node.ask("DELETE", f"/streams/{quote(EVIL, safe='')}", f"Bearer {reader}")
        console.go("audit", "createTopic")
        console.shows(EVIL)  # what was refused was about that
        assert page.value("document.querySelectorAll('main img').length") == 0
        node.ask("POST", "/topics", node.admin, {"topic": "of.late"})
        console.shows("of.late")
        console.shows(EVIL)  # what was read before is there still, and is not asked for again
        read = page.value(AUDIT_READ)
        assert len(set(read)) == len(read) > 1
        finds_nothing(console)
        console.go("topics/theirs.b", "Partitions")
        console.do("press('Delete…')")
        console.do("fill('name', 'other'); $('dialog button[type=submit]').click()")
        console.shows("That is not its name.")
        assert "Authorization: Bearer $WATERCLOCK_CREDENTIAL" in console.submit(name="theirs.b")
        assert page.value("window.wrong") == []
        page.open("about:blank")
