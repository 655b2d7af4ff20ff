"""Rights: what a principal may do, and to which topics, streams and groups. Default deny.

A right is a kind and a glob of names, written as people type it:

    orders.*                 topics and streams of these names
    topic:orders.*           topics only
    stream:chat:*            streams only; their names may have colons
    orders.*:billing         with `consume`: as members of these groups only (streams have none)

`*` is any number of any characters, and nothing else is special. Names that begin with two
underscores are the node's own topics: only globs that begin so reach them. `admin` allows all.

A question that names no topic, stream or group is about all of them: only a right to `*` allows
it, so that code which forgets to say what it is about is refused.
"""

from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple, get_args

from waterclock.model.errors import BadInput
from waterclock.model.names import INTERNAL, check_name

RightKind = Literal["publish", "consume", "schedule", "read", "admin"]
What = Literal["topic", "stream", "any"]

KINDS: tuple[RightKind, ...] = get_args(RightKind)
ALL = "*"
GLOB_CHARS_MAX = 512
RIGHTS_MAX = 1_000
"""Most rights of a principal: each question may look at all of them."""
ANSWERS_MAX = 4_096
"""Answers remembered. Clients invent names, so there is a bound."""

_NAME_CHARS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-*")
_PREFIXES: tuple[What, ...] = ("topic", "stream")

Question = tuple[str | None, str | None, str | None, str | None]


class Glob:
    """A pattern of names, split at its stars: matching goes over a name once and never back."""

    __slots__ = ("_is_exact", "_last", "_middle", "_start", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self._start, *rest = text.split("*")
        self._is_exact = not rest
        self._last = rest[-1] if rest else ""
        self._middle = tuple(part for part in rest[:-1] if part)

    def __repr__(self) -> str:
        return f"<Glob {self.text}>"

    def matches(self, name: str) -> bool:
        if self._is_exact:
            return name == self.text
        position, end = len(self._start), len(name) - len(self._last)
        is_framed = name.startswith(self._start) and name.endswith(self._last)
        if position > end or not is_framed:
            return False
        for part in self._middle:
            # The leftmost place leaves the most for the parts that follow.
            found = name.find(part, position, end)
            if found < 0:
                return False
            position = found + len(part)
        return True


class Right(NamedTuple):
    """Something one may do to what a glob matches."""

    kind: RightKind
    what: What
    glob: str
    group_glob: str = ALL

    @classmethod
    def parse(cls, kind: RightKind, text: str) -> "Right":
        """Return the right that was typed; raises BadInput, which shows the right form."""
        what: What = "any"
        rest = text
        for prefix in _PREFIXES:
            if text.startswith(f"{prefix}:"):
                what, rest = prefix, text.removeprefix(f"{prefix}:")
        glob, colon, group_glob = (rest, "", "") if what == "stream" else rest.partition(":")
        if colon and kind != "consume":
            raise BadInput(f"--{kind} {_shown(text)}: only consume has groups; write GLOB alone")
        _check_glob(kind, text, glob, is_stream=what == "stream")
        if colon:
            _check_glob(kind, text, group_glob, is_stream=False)
        if kind == "admin" and (what, glob) != ("any", ALL):
            raise BadInput(f"admin {_shown(text)}: an admin may do everything; write *")
        return cls(kind, what, glob, group_glob if colon else ALL)

    @property
    def text(self) -> str:
        """As people write it, without its kind: `parse` undoes this."""
        prefix = "" if self.what == "any" else f"{self.what}:"
        group = "" if self.group_glob == ALL else f":{self.group_glob}"
        return f"{prefix}{self.glob}{group}"


class _Rule(NamedTuple):
    """A right, made ready to be asked."""

    what: What
    names: Glob
    groups: Glob

    def covers(self, topic: str | None, stream: str | None, group: str | None) -> bool:
        if not self.covers_name(topic, stream):
            return False
        has_groups = topic is not None or stream is None
        return not has_groups or self.covers_group(group)

    def covers_name(self, topic: str | None, stream: str | None) -> bool:
        if topic is None and stream is None:
            return self.what == "any" and self.names.text == ALL
        return self._covers_topic(topic) and self._covers_stream(stream)

    def covers_group(self, group: str | None) -> bool:
        return self.groups.text == ALL if group is None else self.groups.matches(group)

    def _covers_topic(self, topic: str | None) -> bool:
        if topic is None:
            return True
        is_hidden = topic.startswith(INTERNAL) and not self.names.text.startswith(INTERNAL)
        return self.what != "stream" and not is_hidden and self.names.matches(topic)

    def _covers_stream(self, stream: str | None) -> bool:
        return stream is None or (self.what != "topic" and self.names.matches(stream))


class Rights:
    """All rights of a principal; answers are remembered, as the same few names come again."""

    __slots__ = ("_answers", "_is_admin", "_rules", "rights")

    def __init__(self, rights: Iterable[Right] = ()) -> None:
        self.rights = frozenset(rights)
        self._is_admin = any(right.kind == "admin" for right in self.rights)
        self._rules: dict[str, tuple[_Rule, ...]] = {
            kind: tuple(
                _Rule(right.what, Glob(right.glob), Glob(right.group_glob))
                for right in sorted(self.rights)
                if right.kind == kind
            )
            for kind in KINDS
        }
        self._answers: dict[Question, bool] = {}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Rights) and self.rights == other.rights

    def __hash__(self) -> int:
        return hash(self.rights)

    def __repr__(self) -> str:
        texts = sorted(f"{right.kind} {right.text}" for right in self.rights)
        return f"<Rights {', '.join(texts) or 'none'}>"

    @property
    def is_admin(self) -> bool:
        return self._is_admin

    def allows(
        self,
        kind: RightKind,
        *,
        topic: str | None = None,
        stream: str | None = None,
        group: str | None = None,
    ) -> bool:
        """Say if this may be done to a topic or stream, as a member of a group if one is named.

        What is not named is all there are. Groups count with `consume` and topics only.
        """
        if self._is_admin:
            return True
        question = (kind, topic, stream, group)
        answer = self._answers.get(question)
        if answer is None:
            answer = any(rule.covers(topic, stream, group) for rule in self._rules[kind])
            self._remember(question, answer)
        return answer

    def sees(
        self, *, topic: str | None = None, stream: str | None = None, group: str | None = None
    ) -> bool:
        """Say if a list may show this: there is some right on it, of whatever kind.

        Of a group: the right to read its topic, or to consume as one of its members.
        """
        if self._is_admin:
            return True
        question = (None, topic, stream, group)
        answer = self._answers.get(question)
        if answer is None:
            answer = self._sees(topic, stream, group)
            self._remember(question, answer)
        return answer

    def _sees(self, topic: str | None, stream: str | None, group: str | None) -> bool:
        if group is None:
            rules = [rule for kind in KINDS for rule in self._rules[kind]]
            return any(rule.covers_name(topic, stream) for rule in rules)
        return any(
            rule.covers(topic, stream, group)
            for kind in ("read", "consume")
            for rule in self._rules[kind]
        )

    def _remember(self, question: Question, answer: bool) -> None:
        if len(self._answers) >= ANSWERS_MAX:
            self._answers.clear()
        self._answers[question] = answer


class Needs(NamedTuple):
    """What an operation needs, declared beside it: the kind of right, and which fields of the
    request name the topic, the stream and the group that it is about."""

    kind: RightKind | None
    topic: str | None = None
    stream: str | None = None
    group: str | None = None
    is_list: bool = False
    """It lists topics, streams or groups: everyone may ask, and sees what `Rights.sees`."""

    @property
    def is_open(self) -> bool:
        """Whether everyone may call it, also without a credential."""
        return self.kind is None


OPEN = Needs(None)
"""For health and documentation only."""


def parse_rights(given: Mapping[RightKind, Iterable[str]]) -> Rights:
    """Return rights from what was typed or is in the file; raises BadInput."""
    rights = [Right.parse(kind, text) for kind, texts in given.items() for text in texts]
    if len(rights) > RIGHTS_MAX:
        raise BadInput(f"{len(rights)} rights; a principal has at most {RIGHTS_MAX}")
    return Rights(rights)


def tenant_rights(tenant: str) -> Rights:
    """Return the rights of a tenant: everything but `admin`, to names that begin with its own."""
    check_name("tenant", tenant)
    glob = f"{tenant}.*"
    return Rights(
        Right(kind, "any", glob, glob if kind == "consume" else ALL)
        for kind in KINDS
        if kind != "admin"
    )


def _check_glob(kind: str, text: str, glob: str, *, is_stream: bool) -> None:
    if not glob:
        raise BadInput(f"--{kind} {_shown(text)}: write [topic:|stream:]GLOB, as in 'orders.*'")
    if len(glob) > GLOB_CHARS_MAX:
        raise BadInput(f"--{kind} has {len(glob)} characters; at most {GLOB_CHARS_MAX}")
    if not (glob.isprintable() if is_stream else _NAME_CHARS.issuperset(glob)):
        raise BadInput(
            f"--{kind} {_shown(text)}: names have letters, digits, _ . -, and * is any of them; "
            "a stream of another name is stream:GLOB"
        )


def _shown(text: str) -> str:
    return ascii(text[:50])
