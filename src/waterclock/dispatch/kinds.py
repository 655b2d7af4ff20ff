"""Kinds of settings that only dispatchers and workers have, beside those of `model.settings`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from waterclock.model.settings import Text


@dataclass(frozen=True, slots=True)
class Servers:
    """A list of addresses or URLs, at least one; in one text they are parted by commas."""

    allowed: ClassVar[str] = "a list of host:port or URLs, at least one"

    def read(self, raw: object) -> tuple[str, ...]:
        if isinstance(raw, str):
            raw = [part.strip() for part in raw.split(",")]
        if not isinstance(raw, list | tuple) or not raw:
            raise ValueError
        return tuple(Text(1_000).read(item) for item in raw)

    def show(self, value: Sequence[str]) -> str:
        return ",".join(value)


@dataclass(frozen=True, slots=True)
class Blank:
    """What another kind of text allows, or nothing at all."""

    kind: Text

    @property
    def allowed(self) -> str:
        return f"{self.kind.allowed}, or empty"

    def read(self, raw: object) -> str:
        return "" if raw == "" else self.kind.read(raw)

    def show(self, value: str) -> str:
        return value
