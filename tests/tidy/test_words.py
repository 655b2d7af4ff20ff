"""The project speaks its field's words: those of tests/tidy/words.py are in no name and no text."""

import re
import subprocess
from functools import cache
from pathlib import Path

import pytest

from tests.tidy.words import OUTSIDE, WORDS, Word

ROOT = Path(__file__).parents[2]
# Not ours, or about these very words: the changelog says what had another name.
LEFT_OUT = ("LICENSE", "requirements", "CHANGELOG.md", "tests/tidy/words.py", "tests/tidy/test_wo")
SENTENCE_PARTS_MIN = 5
"""A test's name this long is a sentence, read as text."""

_NAME = re.compile(r"[A-Za-z_]\w+")
_STRINGS = re.compile(
    r'"""(?:\\.|.)*?"""|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|#[^\n]*|//[^\n]*', re.DOTALL
)
_PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")

Files = dict[str, str]


def text_files(root: Path) -> Files:
    """Return the text of every file that is, or would be, in the repository."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout
    found = {}
    for path in sorted(set(filter(None, listed.split("\0")))):
        data = (root / path).read_bytes() if (root / path).is_file() else b"\0"
        if b"\0" not in data and not path.startswith(LEFT_OUT):
            found[path] = data.decode(errors="replace")
    return found


@cache
def taken_apart(name: str) -> str:
    return " ".join(_PART.findall(name))


def names_of(path: str, text: str) -> set[str]:
    """Return the names in a file and in its path, but not the sentences that tests are named by."""
    names = set(Path(path).with_suffix("").parts)
    if path.endswith((".py", ".pyi", ".proto")):
        names |= set(_NAME.findall(_STRINGS.sub(" ", text)))
    return {
        name
        for name in names
        if not name.startswith("test_") or name.count("_") + 1 < SENTENCE_PARTS_MIN
    }


def old_names(word: Word, files: dict[str, set[str]]) -> list[str]:
    every = {name for names in files.values() for name in names} - word.allowed
    old = {name for name in every if re.search(word.names, taken_apart(name))}
    return [
        f"{path}: {name} (say {word.instead})"
        for path, names in files.items()
        if path.startswith(word.only_in)
        for name in sorted(names & old)
    ]


def old_texts(word: Word, files: Files) -> list[str]:
    return [
        f"{path}:{text.count(chr(10), 0, each.start()) + 1} {each[0]} (say {word.instead})"
        for path, text in files.items()
        if path.startswith(word.only_in)
        for each in re.finditer(word.text, text)
    ]


@pytest.fixture(scope="module")
def files() -> Files:
    return text_files(ROOT)


def test_no_name_has_an_old_word(files):
    names = {path: names_of(path, text) for path, text in files.items()}

    assert [line for word in WORDS for line in old_names(word, names)] == []


def test_no_text_has_an_old_word(files):
    assert [line for word in WORDS for line in old_texts(word, files)] == []


def test_nothing_refers_to_documents_outside_the_project(files):
    assert old_texts(OUTSIDE, files) == []


@pytest.mark.parametrize(
    "source",
    ["class GapMap: ...", "gap_map = 1", "def f(old_gap_maps): ...", "x.GAP_MAP", "# the gap map"],
)
def test_an_old_word_is_found(plant, source):
    word = Word("offset_map", r"(?i)\bgap maps?\b", r"(?i)\bgap maps?\b")
    path = "src/waterclock/burrow/maps.py"
    text = (plant(path, source) / path).read_text()

    found = old_names(word, {path: names_of(path, text)}) + old_texts(word, {path: text})

    assert [line.endswith(" (say offset_map)") for line in found] == [True]


def test_an_old_word_is_found_in_a_path_and_nowhere_else_if_it_is_english():
    word = Word("sequence marker", r"(?i)\bmarks?\b", only_in=("src/", "docs/decisions"))

    path = "docs/decisions/0008-marks.md"
    assert old_names(word, {path: names_of(path, "")}) == [
        f"{path}: 0008-marks (say sequence marker)"
    ]
    test = "def test_a_thing_with_marks_is_found(): 'marks'  # marks"
    assert old_names(word, {"src/x.py": names_of("src/x.py", test)}) == []
    assert old_names(word, {"tests/x.py": {"marks"}}) == []


def test_a_document_outside_is_found():
    said = "Why: the design says so, see ../shared/design/x.md.\n"

    assert len(old_texts(OUTSIDE, {"docs/x.md": said})) == 2
