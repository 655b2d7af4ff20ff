"""A scan visits every whole frame, walks around damage, and tells torn from rotten."""

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from tests.log.damage import flipped, mangled
from tests.log.frames import TAG, LogBuilder, logs, sample
from tests.log.scans import OTHER_TAG, START, Place, Visited, log_of, retagged
from waterclock.log.frame import HEADER_BYTES, MAGIC, Frame, encode_header
from waterclock.log.recovery import Damage, Scan, header_crc, scan
from waterclock.model.ids import Offset


@given(logs(), st.sampled_from([0, 8, 4096]))
def test_a_whole_log_is_visited_frame_by_frame_and_zeros_behind_it_are_no_damage(log, zeros):
    visited = Visited(log.data + bytes(zeros))

    assert visited.frames == log.frames
    assert visited.positions == [START + position for position in log.positions]
    last = log.frames[-1].raw.tobytes() if log.frames else None
    assert visited.scan == Scan(
        end_position=START + len(log.data),
        end_offset=Offset(log.end),
        proven_end=max((frame.header.flushed_end for frame in log.frames), default=0),
        last=log.frames[-1].header if log.frames else None,
        last_header_crc=0 if last is None else header_crc(memoryview(last), 0),
    )


@given(logs(base_offset=50), st.data())
def test_a_scan_may_start_behind_what_is_known_already(log, data):
    known = data.draw(st.integers(0, len(log.frames)))
    segment = bytes(START) + log.data
    position = [*log.positions, len(log.data)][known]
    offset = [*(frame.header.base_offset for frame in log.frames), Offset(log.end)][known]
    found: list[Frame] = []

    scanned = scan(
        memoryview(segment), START + position, offset, TAG, lambda frame, _: found.append(frame)
    )

    assert found == log.frames[known:]
    assert (scanned.end_offset, scanned.damage) == (log.end, [])


def test_every_flipped_bit_costs_its_own_frame_and_no_other():
    log = LogBuilder()
    log.publish([sample(0)])
    log.cancel([0])
    log.publish([sample(1), sample(2)])
    start, end = START + log.positions[1], START + log.positions[2]

    for bit in range(log.positions[1] * 8, log.positions[2] * 8):
        visited = Visited(flipped(log.data, bit))

        assert visited.frames == [log.frames[0], log.frames[2]]
        assert visited.places == [(start, end, 1, 2)]


HARMS = ["flip header", "flip body", "zero", "zero start", "other log", "no frame"]


def harmed(frame: bytes, harm: str, random: Random) -> bytes:
    """Return a frame harmed in one way, its length unchanged."""
    if harm == "flip header" or len(frame) == HEADER_BYTES:
        return flipped(frame, random.randrange(HEADER_BYTES * 8))
    if harm == "flip body":
        return flipped(frame, random.randrange(HEADER_BYTES * 8, len(frame) * 8))
    if harm == "zero":
        return bytes(len(frame))
    if harm == "zero start":
        size = random.randrange(1, len(frame))
        return bytes(size) + frame[size:]
    if harm == "other log":
        return retagged(frame, tag=OTHER_TAG)
    return (MAGIC + b"junk") * (len(frame) // 8)


@given(logs(), st.data())
def test_whole_frames_are_visited_around_any_damage_and_each_stretch_of_it_is_reported(log, data):
    random = Random(data.draw(st.integers(0, 999)))
    harms = [data.draw(st.sampled_from([None, None, *HARMS])) for _ in log.frames]
    parts = [
        frame.raw.tobytes() if harm is None else harmed(frame.raw.tobytes(), harm, random)
        for frame, harm in zip(log.frames, harms, strict=True)
    ]
    segment = b"".join(parts) + bytes(data.draw(st.sampled_from([0, 64])))

    visited = Visited(segment)

    whole = [number for number, harm in enumerate(harms) if harm is None]
    assert visited.frames == [log.frames[number] for number in whole]
    assert visited.positions == [START + log.positions[number] for number in whole]
    assert visited.places == expected_places(log, harms, visited.data)
    flushed_ends = [frame.header.flushed_end for frame in visited.frames]
    assert visited.scan.proven_end == max(flushed_ends, default=0)


def expected_places(log: LogBuilder, harms: list[str | None], data: bytes) -> list[Place]:
    """Return neighbouring damage as one stretch; at the end of the file, it ends with the file."""
    places: list[Place] = []
    start = None
    for number, harm in enumerate([*harms, None]):
        if harm is not None:
            start = number if start is None else start
        elif start is not None:
            first, base = START + log.positions[start], log.frames[start].header.base_offset
            if number < len(harms):
                resumed = log.frames[number].header.base_offset
                places.append((first, START + log.positions[number], base, resumed))
            elif any(data[first:]):
                places.append((first, len(data), base, claimed_end(log.frames[start], data, first)))
            start = None
    return places


def claimed_end(frame: Frame, data: bytes, position: int) -> int:
    """Return where a damaged frame says it ends, if its header is whole; else one offset on."""
    header = frame.header
    if data[position : position + HEADER_BYTES] == encode_header(header):
        return max(header.end_offset, header.base_offset + 1)
    return header.base_offset + 1


@given(logs(), st.data())
def test_a_log_cut_anywhere_ends_with_its_last_whole_frame(log, data):
    size = data.draw(st.integers(0, len(log.data)))
    left = log.data[:size] + bytes(data.draw(st.sampled_from([0, 512])))

    visited = Visited(left)

    # A body that ends in zeros may be cut there and is whole again by the zeros behind it.
    ends = [at + frame.header.size for at, frame in zip(log.positions, log.frames, strict=True)]
    whole = sum(left[:end] == log.data[:end] for end in ends)
    end = ends[whole - 1] if whole else 0
    assert visited.frames == log.frames[:whole]
    assert visited.scan.end_position == START + end
    at = visited.scan.end_offset
    torn = [(START + end, START + len(left), at)] * any(left[end:])
    assert [place[:3] for place in visited.places] == torn
    if torn:
        cut = log.frames[whole]
        assert visited.places[0][3] == claimed_end(cut, visited.data, START + end)


def test_ids_seen_have_no_offsets_so_damage_to_them_costs_none():
    log = LogBuilder()
    log.noop(5)
    log.seen([b"a", b"b"], [1, 3])
    log.publish([sample(1)])
    place = [START + position for position in log.positions]

    for bit in (log.positions[1] * 8 + 70, log.positions[2] * 8 - 9):
        visited = Visited(flipped(log.data, bit))

        assert visited.frames == [log.frames[0], log.frames[2]]
        assert visited.places == [(place[1], place[2], 5, 5)]


def test_an_unflushed_tail_is_torn_and_a_flushed_frame_is_rotten():
    log = log_of(4)
    log.flushed_end = 6
    log.publish([sample(8)])
    log.publish([sample(9)])
    parts = [frame.raw.tobytes() for frame in log.frames]
    for number in (1, 4):
        parts[number] = flipped(parts[number], 999)

    found = Visited(b"".join(parts)).scan

    assert found.proven_end == 6
    rotten, torn = found.damage
    assert (rotten.start, rotten.end, torn.start, torn.end) == (2, 4, 8, 9)
    assert (found.rotten(found.proven_end), found.torn_at(found.proven_end)) == ([rotten], torn)


@given(st.lists(st.integers(0, 9), unique=True, max_size=4), st.integers(0, 10))
def test_damage_is_rotten_below_what_is_proven_and_torn_from_there_on(starts, proven_end):
    damage = [Damage(0, 0, Offset(start), Offset(start + 1), "") for start in sorted(starts)]
    found = Scan(0, Offset(0), damage=damage)

    assert found.rotten(proven_end) == [d for d in damage if d.start < proven_end]
    assert found.torn_at(proven_end) == next((d for d in damage if d.start >= proven_end), None)
    assert [str(d) for d in damage] == [f"offsets [{d.start}, {d.end}): " for d in damage]


def test_a_segment_that_must_reach_an_offset_is_damaged_up_to_there():
    log = log_of(3)
    whole, gone = Visited(log.data).scan, Visited(log.data[: log.positions[2]]).scan
    cut = Visited(log.data[: log.positions[2] + 100]).scan
    start, size = START + log.positions[2], 5_000

    def before(found: Scan) -> list[Damage]:
        return found.damage_before(Offset(6), size=size, reason="gone")

    assert before(whole) == []
    assert before(gone) == [Damage(start, size, Offset(4), Offset(6), "gone")]
    assert before(cut) == [Damage(start, start + 100, Offset(4), Offset(6), cut.damage[0].reason)]


def test_bytes_however_mangled_are_frames_damage_or_zeros_from_first_to_last():
    random = Random(5)
    log = log_of(4)

    visited = 0
    for _ in range(600):
        data = mangled(log.data + bytes(64), random) + random.choice([b"", MAGIC * 50])
        visited += len(Visited(data).frames)

    assert 600 < visited < 2_400


def test_a_frame_far_behind_damage_is_found_too():
    log = log_of(1)
    log.publish([sample(2, value=bytes(3 << 20))])
    log.publish([sample(3)])

    visited = Visited(flipped(log.data, (log.positions[1] + 5) * 8))

    assert visited.frames == [log.frames[0], log.frames[2]]
