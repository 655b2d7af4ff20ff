"""A shell that completes a command is offered the names of topics, and never an error."""

import os
import subprocess
import sys


def completed(line: str, address: str) -> list[str]:
    """Return what bash would offer at the end of a line."""
    asked = {
        "_WATERCLOCK_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(line.split(" ")) - 1),
        "WATERCLOCK_ADDRESS": address,
    }
    run = subprocess.run(
        [sys.executable, "-m", "waterclock"],
        env=os.environ | asked, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.stderr == ""
    return run.stdout.split()


def test_names_of_topics_are_offered(node, ask):
    for name in ("fruit-apples", "fruit-pears", "vegetables"):
        ask("topics", "create", name)

    assert completed("waterclock subscribe fruit", node.address) == ["fruit-apples", "fruit-pears"]
    assert completed("waterclock schedule list fruit-p", node.address) == ["fruit-pears"]
    elsewhere = f"waterclock publish --address {node.address} veg"
    assert completed(elsewhere, "127.0.0.1:1") == ["vegetables"]


def test_nothing_is_said_where_no_node_answers(node):
    http = str(node.shown["http_address"]).removeprefix("http://")

    assert completed("waterclock subscribe fr", "127.0.0.1:1") == []
    assert completed("waterclock subscribe fr", "no address at all") == []
    assert completed("waterclock subscribe fr", http) == []
