"""A survey agrees with an opening about every log, also a damaged one, and changes nothing."""

import os
import random
import shutil

import pytest

from waterclock.log.frame import Frame
from waterclock.log.recovery import Damage
from waterclock.model.errors import OffsetOutOfRange, WaterclockError
from waterclock.model.ids import Millis
from waterclock.model.message import Message
from waterclock.model.sections import DedupConfig, LogConfig
from waterclock.storage.folders.os_folder import OsFolder
from waterclock.storage.folders.read_only_folder import ReadOnlyFolder
from waterclock.storage.local_log import open_log
from waterclock.storage.opening import open_partition
from waterclock.storage.survey import Survey, check, look

SMALL = LogConfig(segment_bytes=4_096, preallocate_bytes=512)


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """Return a log that nobody has damaged: messages and scheduled messages in several segments."""
    path = tmp_path_factory.mktemp("survey") / "log"
    with open_log(path, log=SMALL) as log:
        for first in range(0, 80, 4):
            due_ms = None if first % 3 else Millis(log.now_ms() + 60_000)
            log.publish([Message(b"%d" % n, due_ms=due_ms) for n in range(first, first + 4)])
    return path


@pytest.fixture
def folder(sound, tmp_path):
    return shutil.copytree(sound, tmp_path / "log")


def surveyed(path) -> Survey:
    with ReadOnlyFolder(path) as folder:
        return check(folder, advance=lambda count: None)


def test_everything_is_counted_and_every_byte_is_told_of_twice(folder):
    heard: list[int] = []
    with ReadOnlyFolder(folder) as held:
        survey = check(held, advance=heard.append)

    size = sum(file.stat().st_size for file in folder.glob("*.seg"))
    assert survey.counts.rows.total() == survey.end == 80
    assert survey.counts.frames.total() == 20
    assert sum(heard) == size + survey.counts.bytes.total()


def test_a_look_reads_nothing_that_side_cars_know(folder):
    with ReadOnlyFolder(folder) as held:
        survey = look(held)

        assert survey.counts.frames.total() == 0
        assert len(survey.scheduled[0]) == 28


@pytest.mark.parametrize("seed", range(60))
def test_the_verdict_is_that_of_an_opening(folder, seed):
    rng = random.Random(seed)
    damage_somewhere(folder, rng)
    before = {p.name: p.read_bytes() for p in folder.iterdir()}

    verdict: object
    try:
        survey = surveyed(folder)
        verdict = (survey.end, len(survey.scheduled[0]), bool(survey.damage))
    except WaterclockError as error:
        verdict = type(error)

    assert {p.name: p.read_bytes() for p in folder.iterdir()} == before
    assert verdict == opened(folder)


def damage_somewhere(folder, rng: random.Random) -> None:
    """Flip bits, cut files and remove side-cars."""
    for file in sorted(folder.iterdir()):
        if file.name == "LOCK" or rng.random() < 0.5:
            continue
        what = rng.choice(["flip", "cut", "remove", "grow"])
        if what == "flip":
            data = bytearray(file.read_bytes())
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            file.write_bytes(data)
        elif what == "cut":
            os.truncate(file, rng.randrange(file.stat().st_size))
        elif what == "remove" and file.suffix != ".seg":
            file.unlink()
        elif what == "grow":
            with file.open("ab") as end:
                end.write(rng.randbytes(50))


def opened(folder) -> object:
    """Open for real and read all of it, side-cars or not; return the verdict."""
    try:
        store = open_partition(
            OsFolder(folder), log=SMALL, dedup=DedupConfig(), now_ms=0, new_log_id=bytes(16)
        )
    except WaterclockError as error:
        return type(error)
    is_damaged = bool(store.faults)
    try:
        for _ in store.frames(store.start, store.end):
            pass
    except WaterclockError:
        is_damaged = True
    found = (store.end, len(store.open_scheduled()[0]), is_damaged)
    store.folder.close()
    return found


def test_a_walk_goes_around_damage(folder):
    first = min(folder.glob("*.seg"))
    data = bytearray(first.read_bytes())
    data[64 + 10] ^= 1
    first.write_bytes(data)

    with ReadOnlyFolder(folder) as held:
        found = list(look(held).walk(0))

    assert isinstance(found[0], Damage)
    assert (found[0].start, found[0].end) == (0, 4)
    assert [f.header.base_offset for f in found[1:] if isinstance(f, Frame)] == list(
        range(4, 80, 4)
    )


def test_a_walk_from_outside_is_refused(folder):
    with ReadOnlyFolder(folder) as held:
        survey = look(held)

        assert list(survey.walk(80)) == []
        with pytest.raises(OffsetOutOfRange):
            list(survey.walk(81))
