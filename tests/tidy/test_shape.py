"""Files and functions fit the eye, modules are nouns with a theory, and nothing is left over."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src"
CODE = [SRC, *(ROOT / name for name in ("tests", "benchmarks", "demos", "examples", "tools"))]

FILE_LINES_MAX = 500
FUNCTION_LINES_MAX = 60
FOLDER_MODULES_MAX = 20
GENERATED = {Path("waterclock/v1")}
VAGUE_NAMES = {"common", "helper", "helpers", "manager", "misc", "util", "utils"}
SMALL_WORDS = {
    "a", "all", "an", "are", "by", "for", "from", "has", "if", "in", "is", "it", "of", "on", "one",
    "or", "return", "that", "the", "to", "with",
}  # fmt: skip
LEFTOVERS = re.compile(r"\b(TODO|FIXME|XXX)\b|\bNotImplementedError\b")


def written(root: Path) -> Iterator[tuple[Path, str]]:
    """Yield the path below root and the text of every file a person wrote."""
    for file in sorted(root.rglob("*.py")):
        if "_pb2" not in file.name:
            yield file.relative_to(root), file.read_text()


def long_files(root: Path) -> list[str]:
    counts = [(place, len(text.splitlines())) for place, text in written(root)]
    return [f"{place}: {count} lines" for place, count in counts if count > FILE_LINES_MAX]


def crowded_folders(root: Path) -> list[str]:
    modules = [file for file in root.rglob("*.py") if file.name != "__init__.py"]
    counts = Counter(file.parent.relative_to(root) for file in modules)
    return [
        f"{folder}: {count} modules"
        for folder, count in sorted(counts.items())
        if count > FOLDER_MODULES_MAX and folder not in GENERATED
    ]


def long_functions(root: Path) -> list[str]:
    found = []
    for place, text in written(root):
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno is not None
                count = node.end_lineno - node.lineno + 1
                if count > FUNCTION_LINES_MAX:
                    found.append(f"{place}:{node.lineno} {node.name}: {count} lines")
    return found


def vague_modules(root: Path) -> list[str]:
    # Folders count: a package `utils/` is as vague as a module.
    return [
        str(place)
        for place, _ in written(root)
        if VAGUE_NAMES & {part.strip("_") for part in place.with_suffix("").parts}
    ]


def modules_without_theory(root: Path) -> list[str]:
    return [
        str(place)
        for place, text in written(root)
        if text.strip() and ast.get_docstring(ast.parse(text)) is None
    ]


def echoes(root: Path) -> list[str]:
    """Return the docstrings that only repeat the name they stand under."""
    found = []
    for place, text in written(root):
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                said = words_of(ast.get_docstring(node) or "") - SMALL_WORDS
                if said and said <= words_of(node.name):
                    found.append(f"{place}:{node.lineno} {node.name}")
    return found


def words_of(text: str) -> set[str]:
    return {part.lower().removesuffix("s") for part in re.findall(r"[A-Z]?[a-z]+|[A-Z]+", text)}


def leftovers(root: Path) -> list[str]:
    found = []
    for place, text in written(root):
        found += [
            f"{place}:{number} {line.strip()}"
            for number, line in enumerate(text.splitlines(), 1)
            if LEFTOVERS.search(line)
        ]
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call | ast.ExceptHandler) and is_leftover(node, place):
                found.append(f"{place}:{node.lineno} {ast.unparse(node).splitlines()[0]}")
    return found


def is_leftover(node: ast.Call | ast.ExceptHandler, place: Path) -> bool:
    match node:
        case ast.Call(func=ast.Name(id="print")):
            return "cli" not in place.parts
        # A task needs an owner: only a TaskGroup, by convention named so, may create one.
        case ast.Call(func=ast.Name(id="create_task" | "ensure_future")):
            return True
        case ast.Call(func=ast.Attribute(value=owner, attr="create_task" | "ensure_future")):
            return not re.search(r"(tasks|group)$", ast.unparse(owner))
        case ast.ExceptHandler(type=None | ast.Name(id="Exception" | "BaseException"), body=body):
            return all(isinstance(step, ast.Pass | ast.Continue) for step in body)
    return False


def test_files_are_short():
    assert long_files(SRC) == []


def test_a_folder_holds_a_flow_and_no_crowd():
    assert crowded_folders(SRC) == []


def test_functions_fit_the_eye():
    assert [line for root in CODE for line in long_functions(root)] == []


def test_modules_are_named_for_what_they_hold():
    assert [name for root in CODE for name in vague_modules(root)] == []


def test_modules_open_with_their_theory():
    assert modules_without_theory(SRC) == []


def test_docstrings_say_more_than_the_name():
    assert echoes(SRC) == []


def test_nothing_is_left_over():
    assert leftovers(SRC) == []


def test_a_long_file_is_found(plant):
    assert long_files(plant("log/frame.py", "x = 1\n" * 500)) == []
    assert long_files(plant("log/frame.py", "x = 1\n" * 501)) == ["log/frame.py: 501 lines"]


def test_a_crowded_folder_is_found_unless_generated(plant):
    for number in range(21):
        plant(f"waterclock/v1/n{number}.py", "")
        plant(f"waterclock/node/groups/n{number}.py", "")
        plant(f"waterclock/log/n{number % 20}.py", "")

    assert crowded_folders(plant("waterclock/log/__init__.py", "")) == [
        "waterclock/node/groups: 21 modules"
    ]


def test_a_long_function_is_found_unless_generated(plant):
    function = "async def fire():\n" + "    x = 1\n" * 60
    plant("v1/api_pb2_grpc.py", function)

    assert long_functions(plant("wheel.py", function)) == ["wheel.py:1 fire: 61 lines"]


@pytest.mark.parametrize("path", ["log/utils.py", "helpers/__init__.py", "log/_common.py"])
def test_a_vague_name_is_found(plant, path):
    assert vague_modules(plant(path, "")) == [path]


def test_a_module_without_a_docstring_is_found(plant):
    plant("log/__init__.py", "\n")

    assert modules_without_theory(plant("log/frame.py", "import struct\n")) == ["log/frame.py"]


def test_a_docstring_that_repeats_the_name_is_found(plant):
    source = 'class Topics:\n    """The topics."""\n    def get_topic(self):\n        """{}"""\n'
    plant("a.py", source.format("Return a topic."))

    assert echoes(plant("b.py", source.format("Return a topic, or raise NotFound."))) == [
        "a.py:1 Topics",
        "a.py:3 get_topic",
        "b.py:1 Topics",
    ]


@pytest.mark.parametrize(
    "source",
    [
        "x = 1  # TODO: later",
        "raise NotImplementedError",
        "print('here')",
        "asyncio.create_task(f())",
        "create_task(f())",
        "loop.create_task(f())",
        "asyncio.ensure_future(f())",
        "try:\n    f()\nexcept Exception:\n    pass",
        "try:\n    f()\nexcept:\n    pass",
    ],
)
def test_a_leftover_is_found(plant, source):
    assert len(leftovers(plant("log/frame.py", source))) == 1


def test_the_command_line_prints_and_task_groups_create_tasks(plant):
    plant("cli/commands/up.py", "print('up')")
    plant("node/driver.py", "tasks.create_task(f())\nself._tasks.create_task(f())")

    assert leftovers(plant("node/peers.py", "try:\n    f()\nexcept OSError:\n    pass")) == []


def operations_without_needs(root: Path) -> list[str]:
    """Return the rows of HTTP's table that do not say who may call them."""
    return [
        f"{place}:{node.lineno}"
        for place, text in written(root)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call)
        and getattr(node.func, "id", "").lower() == "operation"
        and "needs" not in {keyword.arg for keyword in node.keywords}
    ]


def test_every_operation_says_who_may_call_it(plant):
    assert operations_without_needs(SRC / "waterclock" / "server") == []

    planted = plant("a.py", "Operation('GET', '/topics', list_topics)\n")
    assert operations_without_needs(planted) == ["a.py:1"]
