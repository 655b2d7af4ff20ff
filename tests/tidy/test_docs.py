"""The documents keep their word: links lead somewhere, and the README's program is short."""

import re
from pathlib import Path

from tests.docs.pages import blocks

ROOT = Path(__file__).parents[2]

PROGRAM_LINES_MAX = 12
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


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


def test_links_lead_somewhere():
    assert broken_links(ROOT) == []


def test_the_readme_has_a_short_program_and_what_it_prints():
    page = (ROOT / "README.md").read_text()
    program = next(block for block in blocks(page) if block.kind == "python")

    assert program.printed
    lines = [line for line in program.text.splitlines() if line.strip()]
    assert len(lines) <= PROGRAM_LINES_MAX


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
