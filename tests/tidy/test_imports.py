"""Imports point down only, and a pure core imports nothing that waits, rolls dice or tells time."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SRC = Path(__file__).parents[2] / "src" / "waterclock"

# From the top down; a package may import any row below its own, and no neighbour in its own row.
LAYERS = [
    ["cli"],
    ["spark", "burrow", "dispatch"],
    ["server", "client"],
    ["node"],
    ["stores"],
    ["storage"],
    ["runtime", "security"],  # not pure, so the cores below must not see them
    ["log", "schedule", "delivery", "streams", "cluster", "history"],
    ["model"],
    ["v1"],  # generated from proto/
]
LAYER_OF = {package: row for row, packages in enumerate(LAYERS) for package in packages}
# Programs of other machines: they know a node by its protocols only.
REMOTE = {"client", "spark", "burrow", "dispatch"}
INSIDE = {"server", "node", "stores", "storage"}
# The package's own __init__ exports the public names, so it stands above all.
UNBOUND = {""}
# Beside the package and not in the wheel: they see everything, and nobody sees them.
BESIDE = {"benchmarks", "demos", "examples", "tests"}

# Who leads a partition is a record in the coordinator; replication decides by it.
REPLICATION_READS = ("replication", "coordinator")

PURE = {"model", *LAYERS[LAYER_OF["log"]]}
# The shell of a core, in the core's package because it could be released alone.
SHELLS = {"cluster/gossip/agent.py", "cluster/gossip/discovery.py"}
# Cores in a package that is not pure as a whole.
PURE_MODULES = {"security/audit.py", "security/quotas.py", "security/rights.py"}
IMPURE_MODULES = {
    "asyncio", "io", "os", "pathlib", "random", "secrets", "selectors", "shutil", "signal",
    "socket", "ssl", "subprocess", "tempfile", "threading", "time",
}  # fmt: skip
# Chance is an argument, and the argument has a type.
IMPURE_EXCEPTIONS = {("random", "Random")}


def imports_of(file: Path, *, root: Path) -> Iterator[tuple[int, str, str]]:
    """Yield (line, module, name) of every import, relative ones made absolute."""
    package = ["waterclock", *file.relative_to(root).parent.parts]
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name, ""
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*above, *filter(None, [node.module])])
            for alias in node.names:
                yield node.lineno, module, alias.name


def may_import(source: list[str], target: list[str]) -> bool:
    """Say if a file in the package `source` may import `target`, both as paths below waterclock."""
    above, below = source[0], target[0]
    if above == below == "cluster" and len(source) > 1:  # gossip, ring, raft, … are cores each
        return source[1] == target[1] or (source[1], target[1]) == REPLICATION_READS
    if above == below:
        return True
    if above in REMOTE and below in INSIDE:
        return False
    # A target without a row is a name of waterclock/__init__, which stands above every package.
    return above in UNBOUND or LAYER_OF.get(above, 99) < LAYER_OF.get(below, -1)


def upward_imports(root: Path) -> list[str]:
    found = []
    for file in sorted(root.rglob("*.py")):
        place = file.relative_to(root)
        source = list(place.parent.parts) or [""]
        for line, module, name in imports_of(file, root=root):
            # `from waterclock import log` names the package in its second half.
            top, *target = [*module.split("."), name]
            is_upward = top == "waterclock" and target[0] and not may_import(source, target)
            if is_upward or top in BESIDE:
                found.append(f"{place}:{line} imports {'.'.join(filter(None, target))}")
    return found


def unplaced_packages(root: Path) -> list[str]:
    packages = {file.relative_to(root).parts[0] for file in root.rglob("*/*.py")}
    return sorted(packages - set(LAYER_OF) - UNBOUND)


def impure_lines(root: Path) -> list[str]:
    found = []
    in_packages = [file for package in PURE for file in (root / package).rglob("*.py")]
    alone = [root / module for module in PURE_MODULES if (root / module).exists()]
    for file in sorted(in_packages + alone):
        place = file.relative_to(root)
        if place.as_posix() in SHELLS:
            continue
        found += [
            f"{place}:{line} imports {module}"
            for line, module, name in imports_of(file, root=root)
            if module.split(".")[0] in IMPURE_MODULES and (module, name) not in IMPURE_EXCEPTIONS
        ]
        found += [
            f"{place}:{node.lineno} uses {ast.unparse(node)}"
            for node in ast.walk(ast.parse(file.read_text()))
            if isinstance(node, ast.expr) and is_impure(node)
        ]
    return found


def is_impure(node: ast.expr) -> bool:
    """Find the clocks, dice and files that need no import of their own."""
    match node:
        case ast.Name(id="open"):
            return True
        case ast.Attribute(value=ast.Name(id="datetime" | "date"), attr="now" | "utcnow" | "today"):
            return True
        case ast.Attribute(value=ast.Attribute(value=ast.Name(id="np"), attr="random"), attr=name):
            return name not in {"Generator", "default_rng"}
        case ast.Call(func=ast.Attribute(attr="default_rng"), args=[]):  # unseeded
            return True
    return False


def test_imports_point_down_only():
    assert upward_imports(SRC) == []


def test_every_package_has_a_layer():
    assert unplaced_packages(SRC) == []


def test_pure_cores_touch_no_clock_disk_network_or_chance():
    assert impure_lines(SRC) == []


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("log/frame.py", "from waterclock.storage.folders.folder import File"),
        ("log/frame.py", "from ..storage import disk"),
        ("log/deep/frame.py", "from ... import storage"),
        ("log/frame.py", "import waterclock.schedule.wheel"),
        ("log/frame.py", "from waterclock import schedule"),
        ("model/ids.py", "def f():\n    from ..log import frame"),
        ("storage/folders/folder.py", "from tests.kit import disk"),
        ("storage/folders/folder.py", "from waterclock import connect"),
        ("server/http_api.py", "from waterclock.client import connection"),
        ("client/client.py", "from waterclock.node.node import Node"),
        ("spark/source.py", "from waterclock.server import launch"),
        ("cluster/raft/node.py", "from waterclock.cluster.gossip import members"),
        ("cluster/raft/node.py", "from .. import gossip"),
        ("__init__.py", "from tests.kit import disk"),
    ],
)
def test_an_upward_import_is_found(plant, path, source):
    assert len(upward_imports(plant(path, source))) == 1


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("log/frame.py", "from .schema import SCHEMA"),
        ("log/frame.py", "from . import schema"),
        ("log/frame.py", "from ..model import ids\nimport pyarrow"),
        ("cli/app.py", "from waterclock.node import node\nfrom waterclock.model.ids import Offset"),
        ("cluster/raft/node.py", "from waterclock.cluster.raft.log import Log"),
        ("cluster/placement.py", "from .ring import points"),
        ("spark/source.py", "from waterclock.client.client import connect"),
        ("__init__.py", "from waterclock.client import connect"),
    ],
)
def test_a_downward_import_passes(plant, path, source):
    assert upward_imports(plant(path, source)) == []


def test_a_package_without_a_layer_is_found(plant):
    assert unplaced_packages(plant("gadgets/gadget.py", "")) == ["gadgets"]


@pytest.mark.parametrize(
    "source",
    [
        "import time",
        "import os.path",
        "from asyncio import Queue",
        "from pathlib import Path",
        "def f():\n    import random",
        "file = open('x')",
        "now = datetime.now()",
        "dice = np.random.default_rng()",
        "roll = np.random.random()",
    ],
)
def test_an_impure_core_is_found(plant, source):
    assert len(impure_lines(plant("cluster/raft/node.py", source))) == 1


def test_an_impure_core_beside_a_shell_is_found(plant):
    plant("security/folder.py", "import os")

    assert impure_lines(plant("security/rights.py", "import os")) == [
        "security/rights.py:1 imports os"
    ]


def test_a_shell_may_be_impure_and_a_core_may_name_or_seed_its_dice(plant):
    plant("storage/folders/folder.py", "import os")
    plant("log/id_index/filter.py", "def f(rng: np.random.Generator): np.random.default_rng(17)")

    assert impure_lines(plant("cluster/raft/node.py", "from random import Random")) == []
