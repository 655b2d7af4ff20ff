"""Words that the project does not use, and what it says instead.

`docs/glossary.md` has the words it does use. `names` is sought in identifiers and in the names of
files and folders, taken apart: `gap_map` and `GapMap` are "gap map" and "Gap Map". `text` is sought
in everything: documents, docstrings, comments, messages, protocols. A word that is also ordinary
English is sought in names only, or in the sense that is meant.
"""

from typing import NamedTuple


class Word(NamedTuple):
    """A word that is not used."""

    instead: str
    names: str = "(?!)"
    text: str = "(?!)"
    allowed: frozenset[str] = frozenset()
    """Names that have the word for a reason: another library's, or ordinary English."""
    only_in: tuple[str, ...] = ("",)
    """Where the word would mean that; everywhere unless it is said."""


def _allow(*names: str) -> frozenset[str]:
    return frozenset(names)


def _of(*packages: str) -> tuple[str, ...]:
    return tuple(
        f"{root}/{package}" for package in packages for root in ("src/waterclock", "tests")
    )


WORDS = [
    Word(
        "scheduled",
        r"(?i)\bpromis\w*",
        r"(?i)\bpromised\b|\bpromise frame|\bpromises? (?:of|that|is|are)\b",
        _allow("awaitPromise"),
        # Elsewhere it is the word of Paxos: a replica promises to accept no lower epoch.
        (
            *_of("log", "schedule", "delivery", "streams", "stores", "client", "cli", "spark"),
            *_of("burrow", "dispatch", "simulation", "integration"),
            "proto",
            "demos",
            "docs/api",
        ),
    ),
    Word(
        "dead letter, write_dead_letter",
        r"(?i)\b(?:bury|buri\w+|graves?|died|dying)\b",
        r"(?i)\b(?:bury|buries|buried|burials?|graves?)\b",
    ),
    Word("dead letter partition", r"(?i)\b(?:wards?|living)\b"),
    Word(
        "dead_letters",
        r"(?i)(?<!dead )\bletters\b",
        r"(?i)\b(?:the|its|those|of|with|all|list|these) letters\b",
        _allow("ascii_letters"),
        (
            *_of("node", "server", "client", "cli", "spark", "dispatch", "simulation"),
            "demos",
            "docs",
        ),
    ),
    Word("dead_letter_progress", r"(?i)\bmarks\b", only_in=_of("node")),
    Word(
        "sequence marker",
        r"(?i)\bmarks?\b",
        r"(?i)(?<!pytest\.)\bmarks?\b",
        _allow("mark", "pytestmark"),
        (*_of("dispatch"), "docs/dispatch", "docs/formats/dispatch"),
    ),
    Word("run_id", r"(?i)\b(?:life|lives)\b", r"`life`|<life>|\blife id"),
    Word(
        "GroupPartition",
        r"^Places?\b",
        allowed=_allow("Place", "PlaceKind", "Places"),  # which node answers for a thing
        only_in=_of("node", "server", "client", "delivery"),
    ),
    Word("delivery, app", r"^[Ss]erving$", only_in=_of("node", "server")),
    Word(
        "fetch_plan, ReadQueue",
        r"(?i:\bannounc\w*)|^Ahead\b",
        only_in=_of("node", "delivery"),
    ),
    Word(
        "outbound, DeliveryBatch, QueuedDelivery, stored batch",
        r"(?i)\b(?:outgoing|portions?|parcels?)\b",
        r"(?i)\bparcels?\b",
    ),
    Word("run_detached", r"(?i)\bshelter\w*", r"(?i)\bshelter\w*"),
    Word(
        "BackgroundThreads",
        r"\bAside\b|^aside$",
        only_in=_of("node", "storage", "stores"),
    ),
    Word(
        "request_flush, wait_flushed, step",
        r"^(?:wrote|poked?|durable)$",
        only_in=("src/waterclock/node", "src/waterclock/storage"),
    ),
    Word(
        "PublishBatcher, batching",
        r"(?i)\bgather\w*",
        r"(?i)\bgather(?:ed|ing|s)\b",
        _allow("gather"),
    ),
    Word("TimerIndex", r"(?i)\bagenda\b", r"(?i)\bagenda\b"),
    Word(
        "HotTimers, ColdTimers",
        r"^(?:Near|Far)\b|^(?:near|far)$|(?i:\bfar (?:segments?|timers?)\b)",
        only_in=_of("schedule", "node"),
    ),
    Word(
        "overflow, shard",
        r"(?i)\b(?:piles?|wings?)\b",
        only_in=_of("schedule", "node"),
    ),
    Word("persister, PendingWrite", r"^[Ss]toring$|(?i:\bwish(?:es)?\b)"),
    Word("store_poller", r"(?i)\btailing\b"),
    Word("log cleaner", r"(?i)\bhousekeep\w*", r"(?i)\bhouse-?keep\w*"),
    Word("ResponseModel, render()", r"(?i)\btold\b"),
    Word(
        "RequestModel, FieldNames",
        r"\bshapes\b|\bShapes?\b|\bWords\b|^words$|^WORDS$",
        only_in=_of("server"),
    ),
    Word(
        "stop_reading, is_read_closed",
        r"(?i)\b(?:hush\w*|deaf)\b",
        r"(?i)\b(?:hush\w*|deaf)\b",
    ),
    Word(
        "final_response, response_flags",
        r"(?i)\b(?:farewells?|manners?)\b",
        r"(?i)\bfarewells?\b",
    ),
    Word("StreamingCall", r"(?i)\bconversations?\b", only_in=_of("server")),
    Word("Waiter", r"(?i)\btakers?\b", r"(?i)\btakers?\b"),
    Word("WaitQueue, is_blocking", r"^Line$|\b[Pp]atient\b"),
    Word(
        "accumulator, publish_stream, send_buffer",
        r"(?i)^(?:lanes?|pipes?|room)$|^(?:Lanes?|Pipes?|Room)\b",
        only_in=("src/waterclock/client", "tests/client/test_"),
    ),
    Word("source", r"(?i)\binlets?\b", r"(?i)\binlets?\b"),
    Word("worker pool", r"(?i)\bcrews?\b", r"(?i)\bcrews?\b"),
    Word("message table", r"(?i)\bholdings\b", r"(?i)\bholdings\b"),
    Word("deadline heap", r"(?i)\btimetables?\b", r"(?i)\btimetables?\b"),
    Word("in-flight", r"(?i)\bin hand\b"),
    Word("offset_map", r"(?i)\bgap maps?\b", r"(?i)\bgap[ _-]maps?\b"),
    Word("backpressure, tracing", r"(?i)^(?:flow|spans)$", only_in=_of("burrow")),
    Word("WriteRegistry", r"(?i)\bledgers?\b", r"(?i)\bledgers?\b"),
    Word("MatchTimeout", r"\bNobody Came\b", r"NobodyCame|nobody[-_]came"),
    Word("leader epoch", r"(?i)\breigns?\b", r"(?i)\breigns?\b"),
    Word("monotonic clock", text=r"(?i)\bclock (?:that )?nobody\s+sets"),
    Word(
        "in-memory stream",
        r"(?i)\blight streams?\b",
        r"(?i)\blight\s(?:streams?|messages?)\b",
    ),
    Word(
        "steps, processes, snapshot, printer",
        r"^(?:ACTS?|[Aa]cts|Act)$|^Cast\b|(?i:\b(?:scenes?|narrators?)\b)",
        r"(?i)\bnarrator\b",
    ),
    Word(
        "Effect",
        r"\bActions?\b",
        only_in=_of("burrow", "dispatch", "streams", "delivery"),
    ),
]

OUTSIDE = Word(
    "what the other document says",
    text=r"(?i)\.\./shared|\bshared/(?:design|research|seeds)\b|\bthe seed's\b|\bhouse[ -]style\b"
    r"|\bthe (?:design|issue|brief) (?:says?|said|asks?|asked|told|wants?)\b|\bissue #?\d+",
)
"""What stands outside the project: nobody who reads it could follow."""
