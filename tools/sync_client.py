"""Writes the blocking client, `client/_sync/`, from the asyncio one: no method is written twice.

Like httpcore's unasync, it reads `async def` and writes `def`. Unlike it, what it writes is not a
second implementation but the asyncio client on an event loop of its own (`client/loop_thread.py`),
where heartbeats go on while the program works. So a generated class holds its asyncio twin:

- a coroutine becomes a method of the same signature that runs it on the loop and waits;
- an async generator becomes a generator with the same body, whose awaits are run on the loop;
- what returns a class that has a blocking twin returns that one;
- properties, and attributes set from a parameter, are read as they are.

`make sync` writes the files, and `tests/tidy` checks that they are current.
"""

import ast
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from copy import deepcopy
from pathlib import Path

ROOT = Path(__file__).parent.parent
CLIENT = ROOT / "src/waterclock/client"

SOURCES = {
    "client": ["connect", "Client"],
    "schedule": ["SchedulerCalls"],
    "admin": ["Topics", "Groups", "DeadLetters", "Replays", "JobRuns", "Snapshots"],
    "cluster": ["Cluster"],
    "write_registry": ["WriteRegistry"],
    "consumer.subscription": ["Subscription"],
    "consumer.replay": ["Replay"],
    "streams.streams": ["Streams"],
    "streams.following": ["Following"],
}
"""What has a blocking twin, by module."""

LOOP_OWNER = "Client"
"""It starts and ends the loop, so it is made from the arguments of its twin."""

INTERNAL = {
    "Client.__aenter__",
    "Client.__aexit__",
    "Subscription.__anext__",
    "Subscription.abandon",
    "Subscription.next_delivery",
    "Subscription.put_back",
    "Following.fill",
    "Following.take",
    "Replay.batches",
    "Streams.close",
    "Streams.meet",
}
"""Without a twin: what the parts of the asyncio client ask of each other."""

INSTEAD = {
    # A delivery is handed over as a whole: message by message, each would cost a thread switch. A
    # program that leaves its loop in the middle of one goes on there when it iterates again.
    "Subscription.__aiter__": """
async def __aiter__(self) -> AsyncIterator[ReceivedMessage]:
    while (delivery := await self.next_delivery()) is not None:
        try:
            yield from delivery.messages()
        finally:
            self.put_back(delivery)
"""
}
"""Bodies in place of those of the asyncio client, which would be slow here."""

ITERATED = {"Replay": "LoggedMessage"}
"""Its twin is returned as a mere iterator over these."""

DOC_WORDS = {
    r"`async (with|for)`": r"`\1`",
    r"\ban async iterator\b": "an iterator",
    r"\btasks may iterate\b": "threads may iterate",
    r"`connect`": "`connect_blocking`",
}
"""What docstrings say of asyncio, and what they say instead."""

DUNDERS = {"__aiter__": "__iter__", "__anext__": "__next__", "__aexit__": "__exit__"}

REPR = """
def __repr__(self) -> str:
    return f"<Blocking{repr(self._twin)[1:]}"
"""
ENTER = """
def __enter__(self) -> Self:
    self._loop.run(self._twin.__aenter__())
    return self
"""

Function = ast.FunctionDef | ast.AsyncFunctionDef


def blocking(name: str) -> str:
    """Return what the twin of a class or function is called."""
    return f"{name}_blocking" if name.islower() else f"Blocking{name}"


def _home(module: str) -> str:
    return f"waterclock.client._sync.{module.rpartition('.')[2]}"


TWINS = {name: module for module, names in SOURCES.items() for name in names}
"""Where each asyncio twin is."""
IMPORTS = {
    "Blocking": "from waterclock.client.loop_thread import Blocking",
    "Iterator": "from collections.abc import Iterator",
    "LoggedMessage": "from waterclock.client.consumer.rows import LoggedMessage",
    "LoopOwner": "from waterclock.client.loop_thread import LoopOwner",
    "LoopThread": "from waterclock.client.loop_thread import LoopThread",
    "Self": "from typing import Self",
} | {
    (twin := blocking(name)): f"from {_home(module)} import {twin}"
    for name, module in TWINS.items()
}


def generated() -> dict[Path, str]:
    """Return the text of each generated file."""
    return {
        ROOT / "src" / f"{_home(module).replace('.', '/')}.py": _module(module)
        for module in SOURCES
    }


def _module(module: str) -> str:
    tree = ast.parse((CLIENT / f"{module.replace('.', '/')}.py").read_text())
    defined = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef | Function)}
    made: list[ast.stmt] = []
    for name in SOURCES[module]:
        node = defined[name]
        made.append(_class(node) if isinstance(node, ast.ClassDef) else _sync(node))
    body = "\n".join(ast.unparse(ast.fix_missing_locations(node)) for node in made)
    used = {node.id for node in _names(made)} - {blocking(name) for name in SOURCES[module]}
    origins = _origins(tree, f"waterclock.client.{module}") | IMPORTS
    imports = "\n".join(sorted({origins[name] for name in used if name in origins}))
    heading = f'"""Generated by `make sync` from {module}: do not edit."""'
    return _formatted(f"{heading}\n\n{imports}\n\n{body}\n")


def _class(node: ast.ClassDef) -> ast.ClassDef:
    """Return the blocking twin of a class."""
    twins = [base.id for base in node.bases if isinstance(base, ast.Name) and base.id in TWINS]
    bases = [blocking(base) for base in twins] or [f"Blocking[{node.name}]"]
    if node.name == LOOP_OWNER:
        bases.append("LoopOwner")
    (made,) = ast.parse(f"class {blocking(node.name)}({', '.join(bases)}): pass").body
    assert isinstance(made, ast.ClassDef)
    made.body = _doc(node)
    if twins:
        made.body += ast.parse(f"_twin: {node.name}").body
    for statement in node.body:
        if isinstance(statement, Function) and f"{node.name}.{statement.name}" not in INTERNAL:
            made.body += _method(node.name, statement)
    return made


def _method(owner: str, node: Function) -> list[ast.stmt]:
    """Return what stands for a method in the twin: most often one, for `__init__` properties."""
    if instead := INSTEAD.get(f"{owner}.{node.name}"):
        (written,) = ast.parse(instead).body
        assert isinstance(written, Function)
        node = written
    match node.name:
        case "__init__":
            return [_init(owner, node)] if owner == LOOP_OWNER else list(_properties(node))
        case "__repr__":
            return ast.parse(REPR).body
        case "__aenter__":
            return ast.parse(ENTER).body
        case name if name.startswith("_") and name not in DUNDERS:
            return []
    made = _sync(node)
    made.name = DUNDERS.get(node.name, node.name)
    decorators = {ast.unparse(each) for each in node.decorator_list}
    if "property" in decorators:
        made.body = _doc(node) + ast.parse(f"return self._twin.{node.name}").body
    elif node.name in ("__aiter__", "__anext__") or _is_generator(node):
        made.body = [_Inlined().visit(statement) for statement in made.body]
    elif "overload" not in decorators:
        made.body = _doc(node) + _handed_over(node)
    return [made]


def _handed_over(node: Function) -> list[ast.stmt]:
    """Return a body that has the asyncio twin do it."""
    call = f"self._twin.{node.name}({_arguments(node)})"
    kind = "None" if node.returns is None else ast.unparse(node.returns)
    if isinstance(node, ast.AsyncFunctionDef):
        return ast.parse(f"{'' if kind == 'None' else 'return '}self._loop.run({call})").body
    assert kind in TWINS, f"{node.name} returns {kind}, which has no blocking twin"
    twin = f"{blocking(kind)}(self._loop, self._loop.call(lambda: {call}))"
    return ast.parse(f"return iter({twin})" if kind in ITERATED else f"return {twin}").body


def _init(owner: str, node: Function) -> ast.FunctionDef:
    """Return the `__init__` of the twin that has the loop, and in it the twins of all parts."""
    made = _sync(node)
    made.body = ast.parse(
        f"twin = {owner}({_arguments(node)})\nsuper().__init__(LoopThread(twin), twin)"
    ).body
    for statement in node.body:
        match statement:
            case ast.Assign([ast.Attribute(attr=part)], ast.Call(ast.Name(kind))) if kind in TWINS:
                made.body += ast.parse(
                    f"self.{part} = {blocking(kind)}(self._loop, twin.{part})"
                ).body
    return made


def _properties(node: Function) -> Iterator[ast.stmt]:
    """Yield a property for each public attribute that is set from a parameter."""
    kinds = {each.arg: each.annotation for each in _parameters(node)}
    for statement, doc in zip(node.body, [*node.body[1:], ast.Pass()], strict=True):
        match statement:
            case ast.Assign([ast.Attribute(attr=name)], ast.Name(given)) if name[0] != "_":
                (made,) = ast.parse(f"@property\ndef {name}(self): return self._twin.{name}").body
                assert isinstance(made, ast.FunctionDef)
                made.returns = kinds[given]
                if isinstance(doc, ast.Expr) and isinstance(doc.value, ast.Constant):
                    made.body.insert(0, doc)
                yield made


class _Inlined(ast.NodeTransformer):
    """Makes what waits by `await` wait by blocking, and asks the asyncio twin for what is its."""

    def visit_Await(self, node: ast.Await) -> ast.AST:
        self.generic_visit(node)
        return _call("run", node.value)

    def visit_AsyncFor(self, node: ast.AsyncFor) -> ast.AST:
        self.generic_visit(node)
        return ast.For(node.target, _call("each", node.iter), node.body, node.orelse)

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.value, ast.Name) and node.value.id == "self":
            node.value = ast.parse("self._twin", mode="eval").body
        return node


class _Renamed(ast.NodeTransformer):
    """Says of twins what is said of asyncio's, and of iterators what is said of asynchronous."""

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if node.id in ITERATED:
            return ast.parse(f"Iterator[{ITERATED[node.id]}]", mode="eval").body
        if node.id in TWINS:
            node.id = blocking(node.id)
        elif node.id == "AsyncIterator":
            node.id = "Iterator"
        return node

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if not isinstance(node.value, str):
            return node
        if node.value in TWINS:  # an annotation
            return ast.Constant(blocking(node.value))
        for words, instead in DOC_WORDS.items():
            node.value = re.sub(words, instead, node.value)
        return node


def _sync(node: Function) -> ast.FunctionDef:
    """Return a function as one that is not `async`, and speaks of blocking twins."""
    fields = {name: deepcopy(value) for name, value in ast.iter_fields(node)}
    made = _Renamed().visit(ast.FunctionDef(**fields))
    assert isinstance(made, ast.FunctionDef)
    if node.name in TWINS:
        made.name = blocking(node.name)
    return made


def _call(method: str, argument: ast.expr) -> ast.Call:
    return ast.Call(ast.parse(f"self._loop.{method}", mode="eval").body, [argument], [])


def _doc(node: ast.ClassDef | Function) -> list[ast.stmt]:
    return [_Renamed().visit(deepcopy(node.body[0]))] if ast.get_docstring(node) else []


def _parameters(node: Function) -> list[ast.arg]:
    return [*node.args.args, *node.args.kwonlyargs]


def _arguments(node: Function) -> str:
    """Return what hands all parameters on."""
    given = [each.arg for each in node.args.args[1:]]
    return ", ".join([*given, *(f"{each.arg}={each.arg}" for each in node.args.kwonlyargs)])


def _is_generator(node: Function) -> bool:
    return any(isinstance(each, ast.Yield) for each in ast.walk(node))


def _names(nodes: Iterable[ast.AST]) -> Iterator[ast.Name]:
    for node in (each for top in nodes for each in ast.walk(top)):
        if isinstance(node, ast.Name):
            yield node


def _origins(tree: ast.Module, module: str) -> dict[str, str]:
    """Return the import that brings each name a module has, to another one."""
    found = {}
    for node in tree.body:
        match node:
            case ast.Import(names) | ast.ImportFrom(names=names):
                origin = f"from {node.module} " if isinstance(node, ast.ImportFrom) else ""
                for each in names:
                    found[each.asname or each.name] = f"{origin}import {ast.unparse(each)}"
            case ast.ClassDef(name) | ast.FunctionDef(name) | ast.Assign([ast.Name(name)]):
                found[name] = f"from {module} import {name}"
    return found


def _formatted(text: str) -> str:
    own = 'lint.isort.known-first-party=["waterclock"]'
    for command in (["check", "--fix", "--select=I,F401", "--config", own], ["format"]):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "--quiet", "-"],
            input=text,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            check=True,
        )
        text = done.stdout
    return text


if __name__ == "__main__":
    for path, text in generated().items():
        path.write_text(text)
