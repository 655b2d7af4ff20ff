"""A setting: one field of the configuration, what it may hold and how people write it.

Sections are frozen dataclasses whose fields carry their kind in the type:

    segment_bytes: Annotated[int, size(4 * KIB, 1 * GIB)] = 512 * MIB

The kind reads what a person wrote (`512MiB`), refuses what is not allowed, and shows a value as a
person would write it. Reading a value that was read already gives the same value, so the loader
and the dataclass share one check, and no section can be built with a field out of its range.

In files a time is written with its unit, so its name does not repeat it: the field
`segment_age_ms` is the setting `segment_age`.
"""

import dataclasses
import re
import reprlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Protocol, TypeVar, get_type_hints

from waterclock.model.errors import BadConfig
from waterclock.model.units import COUNT, DURATION, SIZE, Units

Value = TypeVar("Value")

_ORIGIN = re.compile(
    r"\*|(?P<scheme>[a-z][a-z0-9+.-]*)://([a-z0-9_.-]+|\[[0-9a-f:.]+\])(?P<port>:[0-9]{1,5})?"
)
_HOST_NAME = re.compile(r"\*|\.?[a-z0-9_-]+(\.[a-z0-9_-]+)*")


class Kind(Protocol[Value]):
    """What a setting may hold."""

    @property
    def allowed(self) -> str:
        """Say what is allowed, to follow the word "expected"."""
        ...

    def read(self, raw: object) -> Value:
        """Return the value that `raw` means; raise ValueError if it is not allowed."""
        ...

    def show(self, value: Value) -> str:
        """Return `value` as a person would write it."""
        ...


@dataclass(frozen=True, slots=True)
class Whole:
    """A whole number from `least` to `most`, both included."""

    units: Units
    least: int
    most: int

    @property
    def allowed(self) -> str:
        return f"{self.units.noun} from {self.show(self.least)} to {self.show(self.most)}"

    def read(self, raw: object) -> int:
        amount = self.units.parse(raw) if isinstance(raw, str) else raw
        # `type`, because True is an int to isinstance and not to people.
        if type(amount) is not int or not self.least <= amount <= self.most:
            raise ValueError
        return amount

    def show(self, value: int) -> str:
        return self.units.show(value)


def size(least: int, most: int) -> Whole:
    """Return the kind of a number of bytes."""
    return Whole(SIZE, least, most)


def duration(least: int, most: int) -> Whole:
    """Return the kind of a length of time, in milliseconds."""
    return Whole(DURATION, least, most)


def count(least: int, most: int) -> Whole:
    """Return the kind of a plain number."""
    return Whole(COUNT, least, most)


@dataclass(frozen=True, slots=True)
class Choice:
    """One of a few words."""

    words: tuple[str, ...]

    @property
    def allowed(self) -> str:
        return " or ".join(self.words)

    def read(self, raw: object) -> str:
        if not isinstance(raw, str) or raw not in self.words:
            raise ValueError
        return raw

    def show(self, value: str) -> str:
        return value


@dataclass(frozen=True, slots=True)
class Toggle:
    """On or off."""

    allowed: ClassVar[str] = "true or false"

    def read(self, raw: object) -> bool:
        if isinstance(raw, bool):
            return raw
        if isinstance(raw, str) and raw.lower() in ("true", "false"):
            return raw.lower() == "true"
        raise ValueError

    def show(self, value: bool) -> str:
        return "true" if value else "false"


@dataclass(frozen=True, slots=True)
class Text:
    """A name or a path: printable, not empty."""

    chars_max: int

    @property
    def allowed(self) -> str:
        return f"text of 1 to {self.chars_max} printable characters"

    def read(self, raw: object) -> str:
        if not isinstance(raw, str) or not 0 < len(raw) <= self.chars_max or not raw.isprintable():
            raise ValueError
        return raw

    def show(self, value: str) -> str:
        return value


@dataclass(frozen=True, slots=True)
class Listed(ABC):
    """A list of texts; in one text they are parted by commas."""

    allowed: ClassVar[str]

    def read(self, raw: object) -> tuple[str, ...]:
        if isinstance(raw, str):
            raw = [part.strip() for part in raw.split(",")] if raw.strip() else []
        if not isinstance(raw, list | tuple):
            raise ValueError
        return tuple(self._read_one(Text(chars_max=300).read(item)) for item in raw)

    @abstractmethod
    def _read_one(self, text: str) -> str:
        """Return a text as it is kept; raise ValueError if it is not allowed."""

    def show(self, value: Sequence[str]) -> str:
        return ",".join(value)


class Addresses(Listed):
    """A list of `host:port`."""

    allowed: ClassVar[str] = "a list of host:port"

    def _read_one(self, text: str) -> str:
        host, _, port = text.rpartition(":")
        if not host or " " in host:
            raise ValueError
        count(1, 65_535).read(port)
        return f"{host}:{port}"


class Seeds(Addresses):
    """A list of `host:port`, or of services in DNS and tags in a cloud that lead to such."""

    allowed: ClassVar[str] = "a list of host:port, srv:name, or provider=name …"

    def _read_one(self, text: str) -> str:
        if text.startswith("provider="):  # its words are read where the provider is known
            return text
        is_service = text.startswith("srv:") and len(text) > len("srv:") and " " not in text
        return text if is_service else Addresses._read_one(self, text)


class Endpoints(Addresses):
    """A list of `host:port`, each perhaps as a URL."""

    allowed: ClassVar[str] = "a list of host:port, http://host:port or https://host:port"

    def _read_one(self, text: str) -> str:
        scheme, separator, address = text.rpartition("://")
        if separator and scheme not in ("http", "https"):
            raise ValueError
        return f"{scheme}{separator}{Addresses._read_one(self, address.removesuffix('/'))}"


class Folders(Listed):
    """A list of absolute paths."""

    allowed: ClassVar[str] = "a list of absolute paths"

    def _read_one(self, text: str) -> str:
        if not text.startswith("/"):
            raise ValueError
        return text


class Origins(Listed):
    """A list of the origins of web pages, as browsers write them."""

    allowed: ClassVar[str] = "a list of origins such as https://app.example.com, or *"

    def _read_one(self, text: str) -> str:
        found = _ORIGIN.fullmatch(text.lower())
        if found is None:
            raise ValueError
        # Browsers leave out the port that the scheme means anyway.
        is_implied = (found["scheme"], found["port"]) in (("http", ":80"), ("https", ":443"))
        return found[0].removesuffix(found["port"]) if is_implied else found[0]


class HostNames(Listed):
    """A list of host names without ports; one with a dot before it is all names below."""

    allowed: ClassVar[str] = "a list of host names such as node1.example.com, or *"

    def _read_one(self, text: str) -> str:
        if _HOST_NAME.fullmatch(text.lower()) is None:
            raise ValueError
        return text.lower()


@dataclass(frozen=True, slots=True)
class Maybe(Generic[Value]):
    """What another kind allows, or nothing."""

    kind: Kind[Value]

    @property
    def allowed(self) -> str:
        return f"{self.kind.allowed}, or none"

    def read(self, raw: object) -> Value | None:
        return None if raw is None or raw == "none" else self.kind.read(raw)

    def show(self, value: Value | None) -> str:
        return "none" if value is None else self.kind.show(value)


@dataclass(frozen=True, slots=True)
class Setting:
    """One field of one section."""

    path: str
    """Its dotted name, as in flags and errors: `log.segment_age`."""
    attribute: str
    """Its name in the section's dataclass: `segment_age_ms`."""
    kind: Kind[Any]
    default: object

    def read(self, raw: object, *, source: str = "") -> object:
        """Return the value that `raw` means, or raise BadConfig saying what is allowed."""
        try:
            return self.kind.read(raw)
        except ValueError:
            where = f" in the {source}" if source else ""
            problem = f"expected {self.kind.allowed}, got {shown(raw)}{where}"
            raise BadConfig(self.path, problem) from None


@dataclass(frozen=True, slots=True)
class Section:
    """The base of a part of the configuration: checks each field when built."""

    section: ClassVar[str]

    def __post_init__(self) -> None:
        for setting in settings_of(type(self)):
            value = getattr(self, setting.attribute)
            checked = setting.read(value)
            assert checked == value, f"{setting.attribute} takes {checked!r}, not {value!r}"


def settings_of(section: type[Section]) -> tuple[Setting, ...]:
    """Return the settings of a section, in the order they are written."""
    hints = get_type_hints(section, include_extras=True)
    return tuple(
        Setting(
            path=f"{section.section}.{_name_in_files(field.name)}",
            attribute=field.name,
            kind=hints[field.name].__metadata__[0],
            default=field.default,
        )
        for field in dataclasses.fields(section)
    )


def _name_in_files(attribute: str) -> str:
    return "_".join(word for word in attribute.split("_") if word != "ms")


def shown(raw: object) -> str:
    """Return what somebody gave us, shortened to fit an error."""
    try:
        return reprlib.repr(raw)
    except ValueError:  # an integer of more digits than Python prints
        return f"a huge {type(raw).__name__}"
