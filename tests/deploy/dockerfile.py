"""A Dockerfile as a list of instructions, by the part of the language that ours uses.

What is not understood is refused: a test that leaves out a step proves nothing.
"""

import json
import re
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path

KNOWN = frozenset({
    "ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "EXPOSE", "FROM", "HEALTHCHECK", "LABEL", "RUN",
    "STOPSIGNAL", "USER", "VOLUME", "WORKDIR",
})  # fmt: skip
_VARIABLE = re.compile(r"\$\{(\w+)\}|\$(\w+)")
_PAIR = re.compile(r'([\w.]+)=("[^"]*"|\S+)')


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction: `RUN`, and what stands behind it."""

    name: str
    text: str

    def words(self) -> list[str]:
        """Return the JSON list that the text ends with."""
        words = json.loads(self.text[self.text.index("[") :])
        return [str(word) for word in words]

    def pairs(self) -> dict[str, str]:
        """Return the `NAME=value` of it."""
        return {name: value.strip('"') for name, value in _PAIR.findall(self.text)}


@dataclass(slots=True)
class Stage:
    """What stands between one FROM and the next."""

    base: str
    name: str
    steps: list[Instruction] = field(default_factory=list)

    def last(self, name: str) -> Instruction:
        """Return the instruction that counts, of those that overwrite each other."""
        return [step for step in self.steps if step.name == name][-1]

    def environ(self) -> dict[str, str]:
        """Return what all ENV of it set."""
        return {k: v for step in self.steps if step.name == "ENV" for k, v in step.pairs().items()}


def parse(text: str) -> list[Stage]:
    """Return the stages. Raises ValueError for what is not understood."""
    arguments: dict[str, str] = {}
    stages: list[Stage] = []
    for line in _logical_lines(text):
        name, _, rest = line.partition(" ")
        if name not in KNOWN:
            raise ValueError(f"{name} is not understood")
        if name == "ARG":
            key, _, value = rest.partition("=")
            arguments[key] = value
        elif name == "FROM":
            base, _, alias = _filled(rest, arguments).partition(" AS ")
            stages.append(Stage(base, alias))
        else:
            text = _filled(rest, arguments) if name != "RUN" else rest
            stages[-1].steps.append(Instruction(name, text.strip()))
    return stages


def _filled(text: str, arguments: dict[str, str]) -> str:
    return _VARIABLE.sub(lambda it: arguments.get(it[1] or it[2], it[0]), text)


def _logical_lines(text: str) -> list[str]:
    kept = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return "\n".join(kept).replace("\\\n", " ").splitlines()


def context(root: Path) -> set[str]:
    """Return the files of a repository that a build is given: those .dockerignore leaves in."""
    rules = [
        line for line in (root / ".dockerignore").read_text().splitlines()
        if line and not line.startswith("#")
    ]  # fmt: skip
    tops = {rule[1:].split("/")[0] for rule in rules if rule.startswith("!")}
    files = [
        file.relative_to(root)
        for top in tops
        for file in ([root / top] if (root / top).is_file() else (root / top).rglob("*"))
        if file.is_file()
    ]
    return {str(file) for file in files if _is_given(file, rules)}


def _is_given(file: Path, rules: list[str]) -> bool:
    places = [str(file), *(str(parent) for parent in file.parents if parent.name)]
    is_given = True
    for rule in rules:
        pattern = rule.removeprefix("!").removeprefix("**/")
        names = [place.rsplit("/", 1)[-1] for place in places] if "**/" in rule else places
        if any(fnmatch(name, pattern) for name in names):
            is_given = rule.startswith("!")
    return is_given
