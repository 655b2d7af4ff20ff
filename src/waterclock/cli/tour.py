"""The acts of the demo. Each does something real to a log and returns what came of it.

Nothing here prints, and nothing is taken on trust: whatever is claimed was read back and compared.
"""

import hashlib
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from waterclock.log.frame import HEADER_BYTES, Frame
from waterclock.log.recovery import Damage
from waterclock.model.errors import FrameDamaged, StorageFailed, translate
from waterclock.model.ids import Millis, Offset
from waterclock.model.message import Message
from waterclock.model.sections import LogConfig
from waterclock.model.units import HOUR_MS, MIB
from waterclock.storage.local_log import Log, Promise, StoredMessage, open_log
from waterclock.storage.read_only_folder import ReadOnlyFolder
from waterclock.storage.survey import check, look

LOG = LogConfig(segment_bytes=2 * MIB, preallocate_bytes=2 * MIB)
"""Small segments, so that a short tour has several."""

BATCH = 1_000
BATCHES = 60
PUBLISH_SECONDS_MAX = 3.0
"""A slow disk gets fewer batches, not a longer demo."""
REPEATED_BATCHES = 20
PROMISES = 400
PROMISE_HOURS = 12
CRASH_BATCH = 50
CRASH_ACKNOWLEDGEMENTS = 60
"""So many are heard before the kill."""
WRITER_SECONDS_MAX = 60.0

_DRINKS = ("espresso", "flat white", "green tea", "lemonade")


@dataclass(frozen=True, slots=True)
class Published:
    """Act one."""

    messages: int
    batches: int
    seconds: float
    batch_ms: float
    """Median time until a batch was durable."""
    end: int


@dataclass(frozen=True, slots=True)
class Repeated:
    """Act two."""

    messages: int
    written: int
    same_offsets: int
    """How many were answered with the offset of the first time."""
    seconds: float


@dataclass(frozen=True, slots=True)
class Promised:
    """Act three."""

    messages: int
    soonest: list[Promise]
    per_hour: list[int]


@dataclass(frozen=True, slots=True)
class Crashed:
    """Act four."""

    acknowledged: int
    found: int
    unacknowledged: int
    """Written and found, though the writer died before it could say so."""
    earlier: int
    """Messages of the acts before that are still there."""
    promises: int
    reopen_ms: float

    @property
    def lost(self) -> int:
        """Messages acknowledged and not there: the number this is all about."""
        return self.acknowledged - self.found


@dataclass(frozen=True, slots=True)
class Rotted:
    """Act five."""

    copy: str
    file: str
    position: int
    found: list[Damage]
    is_found: bool
    """The damage is named, by exactly the offsets that were hit."""
    served: int
    refused: int
    wrong: int
    is_unchanged: bool
    """Reading around the damage left every segment file as it was, the damage included."""


Act = Published | Repeated | Promised | Crashed | Rotted


@dataclass(frozen=True, slots=True)
class Acts:
    """All that was done, in order."""

    published: Published
    repeated: Repeated
    promised: Promised
    crashed: Crashed
    rotted: Rotted

    def broken(self) -> list[str]:
        """Name the promises that were not kept."""
        repeated, crashed, rotted = self.repeated, self.crashed, self.rotted
        kept = {
            "an acknowledged message was lost": crashed.lost == 0,
            "an earlier message was lost": crashed.earlier == self.published.messages,
            "a promise was lost": crashed.promises == self.promised.messages == PROMISES,
            "a message was written twice": repeated.written == 0,
            "a repeat got another offset": repeated.same_offsets == repeated.messages,
            "damage was not found": rotted.is_found,
            "a wrong message was served": rotted.wrong == 0,
            "bytes were changed around damage": rotted.is_unchanged,
        }
        return [what for what, is_kept in kept.items() if not is_kept]


def order(number: int) -> Message:
    """Return a message of the first act."""
    drink = _DRINKS[number % len(_DRINKS)]
    return Message(
        f"order {number}: {1 + number % 3} {drink}".encode(),
        key=b"table-%d" % (number % 40),
        message_id=b"order-%d" % number,
    )


def crash_message(number: int) -> Message:
    """Return a message of the process that is killed."""
    return Message(b"written before the end: %d" % number, message_id=b"crash-%d" % number)


def publish(log: Log) -> Published:
    """Publish batches one after the other, each durable before the next."""
    batches = [[order(n) for n in range(i, i + BATCH)] for i in range(0, BATCH * BATCHES, BATCH)]
    took: list[float] = []
    started = before = time.perf_counter()
    for batch in batches:
        log.publish(batch)
        now = time.perf_counter()
        took.append(now - before)
        before = now
        if now - started > PUBLISH_SECONDS_MAX:
            break
    count = len(took)
    return Published(count * BATCH, count, before - started, 1_000 * median(took), log.end)


def repeat(log: Log, published: Published) -> Repeated:
    """Publish some of the same ids again."""
    batches = min(REPEATED_BATCHES, published.batches)
    written = same = 0
    started = time.perf_counter()
    for first in range(0, batches * BATCH, BATCH):
        appended = log.publish([order(n) for n in range(first, first + BATCH)])
        written += appended.new_count
        # The log was empty before, so the first time each order's offset was its number.
        same += sum(int(at) == first + i for i, at in enumerate(appended.offsets))
    return Repeated(batches * BATCH, written, same, time.perf_counter() - started)


def promise(log: Log) -> Promised:
    """Publish messages for later, most of them due about dinner time."""
    rng = random.Random(17)
    now_ms = log.now_ms()
    horizon = PROMISE_HOURS * HOUR_MS
    dues = [now_ms + int(rng.triangular(1, horizon - 1, horizon * 0.6)) for _ in range(PROMISES)]
    log.publish(
        [
            Message(
                b"reservation %d: the table is yours" % number,
                key=b"guest-%d" % number,
                message_id=b"reservation-%d" % number,
                due_ms=Millis(due_ms),
            )
            for number, due_ms in enumerate(dues)
        ]
    )
    kept = log.promises()
    per_hour = [0] * PROMISE_HOURS
    for found in kept:
        per_hour[(found.due_ms - now_ms) // HOUR_MS] += 1
    return Promised(len(kept), kept[:5], per_hour)


@translate({OSError: StorageFailed})
def crash(folder: Path) -> Crashed:
    """Let another process publish, kill it, and see what is left of what it was sure of."""
    with _writer(folder) as child:
        acknowledged = _acknowledgements(child)
    started = time.perf_counter()
    log = open_log(folder, log=LOG)
    reopen_ms = 1_000 * (time.perf_counter() - started)
    with log:
        stored = dict(log.read())
        promises = len(log.promises())
    wanted = {Offset(at): crash_message(number) for at, number in acknowledged.items()}
    found = sum(stored.get(offset) == message for offset, message in wanted.items())
    by_writer = sum(
        (message.message_id or b"").startswith(b"crash-") for message in stored.values()
    )
    earlier = len(stored) - by_writer
    return Crashed(len(wanted), found, by_writer - found, earlier, promises, reopen_ms)


@contextmanager
def _writer(folder: Path) -> Iterator["subprocess.Popen[str]"]:
    """Run the writer; whatever happens, it does not outlive us."""
    child = subprocess.Popen(
        [sys.executable, "-m", "waterclock", "demo-writer", str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    guard = threading.Timer(WRITER_SECONDS_MAX, child.kill)
    guard.daemon = True
    guard.start()
    try:
        yield child
    finally:
        guard.cancel()
        child.kill()
        child.communicate()


def _acknowledgements(child: "subprocess.Popen[str]") -> dict[int, int]:
    """Hear the writer out and kill it in the middle; return its messages' numbers by offset."""
    assert child.stdout is not None
    assert child.stderr is not None
    heard: dict[int, int] = {}
    started = time.perf_counter()
    # After the kill the pipe still holds what was said before it; that counts too.
    for lines, line in enumerate(child.stdout):
        offset, number, count = map(int, line.split())
        heard |= {offset + i: number + i for i in range(count)}
        if lines == 0:
            started = time.perf_counter()
        if lines == CRASH_ACKNOWLEDGEMENTS:
            # Half a batch later, it has something in hand.
            time.sleep((time.perf_counter() - started) / lines / 2)
            child.kill()
    if child.wait() != -signal.SIGKILL or not heard:
        said = child.stderr.read().strip().splitlines() or [f"exit code {child.returncode}"]
        raise StorageFailed(f"the writing process ended by itself: {said[-1]}")
    return heard


@translate({OSError: StorageFailed})
def rot(folder: Path, copy: Path, *, at: int) -> Rotted:
    """Flip one bit in a copy of the log, near an offset, then look for it and read around it."""
    shutil.copytree(folder, copy)
    file, position, frame = _flip(copy, at=at)
    before = _fingerprints(copy)
    with ReadOnlyFolder(copy) as held:
        damage = [found for _, found in check(held, advance=lambda _: None).damage]
    with open_log(folder, log=LOG) as log:
        written = dict(log.read())
    with open_log(copy, log=LOG) as log:
        stored = list(_read_around(log, damage))
    served = sum(written.get(offset) == message for offset, message in stored)
    return Rotted(
        str(copy),
        file,
        position,
        damage,
        [(found.start, found.end) for found in damage] == [frame],
        served,
        len(written) - len(stored),
        len(stored) - served,
        _fingerprints(copy) == before,
    )


def _flip(folder: Path, *, at: int) -> tuple[str, int, tuple[int, int]]:
    """Flip a bit of the frame that holds an offset; return file, byte and the frame's offsets."""
    with ReadOnlyFolder(folder) as held:
        survey = look(held)
        frame = next(survey.walk(at))
        assert isinstance(frame, Frame)
        header = bytes(frame.raw[:HEADER_BYTES])
        span, size = (frame.header.base_offset, frame.header.end_offset), frame.header.body_len
        name = next(s.file.name for s in survey.segments if s.end_offset > at)
    path = folder / name
    data = bytearray(path.read_bytes())
    position = data.index(header) + HEADER_BYTES + size // 2
    data[position] ^= 1 << 3
    path.write_bytes(data)
    return name, position, span


def _fingerprints(folder: Path) -> dict[str, str]:
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.glob("*.seg")
    }


def _read_around(log: Log, damage: list[Damage]) -> Iterator[StoredMessage]:
    """Yield every message that the log will serve."""
    offset = int(log.start)
    while True:
        try:
            for stored in log.read(offset):
                yield stored
                offset = stored.offset + 1
            return
        except FrameDamaged:
            behind = [found.end for found in damage if found.end > offset]
            if not behind:
                raise
            offset = behind[0]
