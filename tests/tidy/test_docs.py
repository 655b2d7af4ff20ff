"""The documents keep their word: links lead somewhere, and the README's program runs."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.client.programs import output_beside_node

ROOT = Path(__file__).parents[2]

PROGRAM_LINES_MAX = 12
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
# The first Python block, and the first text block after it: what it prints.
PROGRAM = re.compile(r"^```python\n(.*?)^```.*?^```text\n(.*?)^```", re.MULTILINE | re.DOTALL)


def documents(root: Path) -> list[Path]:
    return [
        file
        for file in sorted(root.rglob("*.md"))
        if not any(part.startswith(".") for part in file.relative_to(root).parts)
    ]


def broken_links(root: Path) -> list[str]:
    found = []
    for document in documents(root):
        # Code blocks hold examples, not links.
        for target in LINK.findall(FENCE.sub("", document.read_text())):
            path, _, anchor = target.partition("#")
            aim = document.parent / path if path else document
            if "://" in target or target.startswith("mailto:"):
                continue
            if not aim.exists() or (anchor and anchor not in anchors(aim)):
                found.append(f"{document.relative_to(root)}: {target}")
    return found


def anchors(document: Path) -> set[str]:
    """Return the anchors of the headings, made as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", document.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def program_of(readme: Path) -> tuple[str, str]:
    """Return the README's first program and the output printed below it."""
    if not readme.exists():
        pytest.fail(f"{readme} is missing")
    found = PROGRAM.search(readme.read_text())
    if found is None:
        pytest.fail(f"{readme} has no ```python block followed by a ```text block")
    return found[1], found[2]


def output_of(program: str, folder: Path) -> str:
    run = subprocess.run(
        [sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, check=False
    )
    return run.stdout + run.stderr


def test_links_lead_somewhere():
    assert broken_links(ROOT) == []


def test_the_readme_program_prints_what_the_readme_says(tmp_path):
    program, expected = program_of(ROOT / "README.md")

    assert len([line for line in program.splitlines() if line.strip()]) <= PROGRAM_LINES_MAX
    assert output_beside_node(["-c", program], tmp_path) == expected


def test_the_changelog_has_a_place_for_the_next_change():
    assert "\n## [Unreleased]\n" in (ROOT / "CHANGELOG.md").read_text()


def test_a_broken_link_is_found(plant):
    plant("docs/log.md", "# The log, drawn\n")
    plant("docs/map.md", "[x](https://a.invalid) [up](../README.md)\n```\n[x](no.md)\n```\n")
    readme = "[log](docs/log.md#the-log-drawn) [gone](docs/gone.md) [off](docs/log.md#the-wheel)\n"

    assert broken_links(plant("README.md", readme)) == [
        "README.md: docs/gone.md",
        "README.md: docs/log.md#the-wheel",
    ]


def test_a_readme_program_and_its_output_are_read_and_run(plant, tmp_path):
    readme = "# W\n```python\nprint(6 * 7)\n```\nwhich prints\n```text\n42\n```\n"
    program, expected = program_of(plant("README.md", readme) / "README.md")

    assert output_of(program, tmp_path) == expected == "42\n"
    assert "ZeroDivisionError" in output_of("1 / 0", tmp_path)


def test_a_readme_without_a_program_is_refused(plant, tmp_path):
    with pytest.raises(pytest.fail.Exception, match="is missing"):
        program_of(tmp_path / "README.md")
    with pytest.raises(pytest.fail.Exception, match="no ```python block"):
        program_of(plant("README.md", "# W\n") / "README.md")
