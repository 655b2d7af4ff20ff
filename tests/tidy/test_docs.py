"""The documents keep their word: links and paths lead somewhere, lines fit, programs are short."""

import re
from pathlib import Path

from tests.docs.pages import blocks

ROOT = Path(__file__).parents[2]

PROGRAM_LINES_MAX = 12
PAGE_LINES_MAX = {"ARCHITECTURE.md": 250, "CONTRIBUTING.md": 80}
LINE_CHARS_MAX = 100
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)
DEFINED = r"(?m)^(?:class|def|async def) {0}\b|^{0} *[:=]"
MODULE = re.compile(r"`((?:[a-z_]+/)*[a-z_]+\.py)`")
PATH = re.compile(r"`([\w.-][\w./-]*(?:\.\w+|/))`")


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


def long_lines(root: Path) -> list[str]:
    found = []
    for document in documents(root):
        # Code keeps its lines, and so do tables; a link cannot be broken.
        text = FENCE.sub(lambda block: "\n" * block[0].count("\n"), document.read_text())
        for number, line in enumerate(text.splitlines(), 1):
            is_wide = len(line) > LINE_CHARS_MAX and " " in line.strip("-* ")
            if is_wide and not line.lstrip().startswith(("|", "<!--")):
                found.append(f"{document.relative_to(root)}:{number}: {len(line)} characters")
    return found


def lost_paths(page: str, root: Path) -> list[str]:
    """Return the paths on a page that lead nowhere; a bare name stands in the folder before it."""
    roots = [root / "src" / "waterclock", root]
    folder, found = root, []
    for path in PATH.findall(FENCE.sub("", page)):
        if "/" not in path and not path.endswith(".py"):  # an attribute or a setting
            continue
        bases = [folder, *roots] if "/" in path else [folder]
        place = next((base / path for base in bases if (base / path).exists()), None)
        if place is None:
            found.append(path)
        elif "/" in path:
            folder = place if place.is_dir() else place.parent
    return found


def lost_modules(root: Path) -> list[str]:
    """Return the modules that are named in code or, by their path, on pages, and are not there."""
    source = root / "src" / "waterclock"
    found = []
    for file in sorted([*source.rglob("*.py"), *documents(root)]):
        folders = [each for each in file.parents if each.is_relative_to(root)]
        for name in MODULE.findall(FENCE.sub("", file.read_text())):
            is_named = file.suffix == ".py" or "/" in name
            if is_named and not any((base / name).exists() for base in [*folders, source]):
                found.append(f"{file.relative_to(root)}: {name}")
    return found


def lost_names(page: str, root: Path) -> list[str]:
    """Return the names in a page's tables that are not where they are said to be.

    Names stand in the third column. If the first has folders (the map), they are defined there; if
    the second has files (what to change), they occur there.
    """
    found = []
    for row in re.findall(r"^\|(.+)\|$", page, re.MULTILINE):
        cells = [re.findall(r"`([^`]+)`", cell) for cell in row.split("|")]
        if len(cells) < 4:
            continue
        where, pattern = (cells[0], DEFINED) if "/" in str(cells[0]) else (cells[1], r"\b{}\b")
        text = "".join(file.read_text() for file in _files(where, root))
        found += [
            name
            for name in cells[2]
            if not all(re.search(pattern.format(part), text) for part in name.split("."))
        ]
    return found


def _files(paths: list[str], root: Path) -> list[Path]:
    bases = [root / "src" / "waterclock", root]
    places = [base / word for path in paths for word in path.split() for base in bases]
    return [
        file
        for place in places
        for file in ([place] if place.suffix == ".py" else place.rglob("*.py"))
        if file.is_file()
    ]


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


def test_lines_fit():
    assert long_lines(ROOT) == []


def test_pages_for_developers_are_short():
    for page, most in PAGE_LINES_MAX.items():
        assert len((ROOT / page).read_text().splitlines()) <= most


def test_the_architecture_names_what_there_is():
    page = (ROOT / "ARCHITECTURE.md").read_text()

    assert lost_paths(page, ROOT) == []
    assert lost_names(page, ROOT) == []


def test_modules_that_are_named_are_there():
    assert lost_modules(ROOT) == []


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


def test_a_long_line_is_found_unless_it_is_a_table_a_program_or_one_link(plant):
    long = "word " * 21
    page = f"{long}\n| {long} |\n```\n{long}\n```\n- [x](https://{'a' * 100}.invalid)\n"

    assert long_lines(plant("docs/log.md", page)) == ["docs/log.md:1: 105 characters"]


def test_a_path_that_leads_nowhere_is_found(plant):
    plant("src/waterclock/log/frame.py", "")
    root = plant("src/waterclock/log/batch.py", "")
    page = (
        "`log/frame.py`, `batch.py` in `log/`, `ruff.toml`; not `gone.py`, `node/`; `dedup.window`"
    )

    assert lost_paths(page, root) == ["gone.py", "node/"]


def test_a_name_that_is_not_where_a_table_says_is_found(plant):
    plant("src/waterclock/log/frame.py", "from waterclock.log.batch import Batch\nclass Frame: ...")
    root = plant("src/waterclock/model/sections.py", "class LogConfig:\n    fsync: str")
    page = (
        "| `log/` with `sidecars/` | frames | `Frame`, `Batch` | a guarantee |\n"
        "| fsync | `model/sections.py` | `LogConfig.fsync`, `LogConfig.sync` | `log.fsync` |\n"
    )

    assert lost_names(page, root) == ["Batch", "LogConfig.sync"]


def test_a_module_that_is_named_and_not_there_is_found(plant):
    plant("src/waterclock/log/frame.py", '"""See `batch.py`, `log/frame.py`, `model/ids.py`."""')
    root = plant("docs/log.md", "`frame.py`, `log/frame.py`, `src/waterclock/log/gone.py`\n")

    assert lost_modules(root) == [
        "docs/log.md: src/waterclock/log/gone.py",
        "src/waterclock/log/frame.py: batch.py",
        "src/waterclock/log/frame.py: model/ids.py",
    ]


def test_every_page_is_in_the_site():
    listed = (ROOT / "mkdocs.yml").read_text()
    docs = ROOT / "docs"
    pages = [str(page.relative_to(docs)) for page in documents(docs)]
    assert len(pages) > 30
    assert [page for page in pages if f"{page}\n" not in listed] == []
