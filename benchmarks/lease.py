"""How long should a dispatcher's lease be? Answered in lease.md.

    python -m benchmarks.lease              the table, then one line of JSON
    python -m benchmarks.lease --record     also writes lease.md, its picture and RESULTS.md

For each lease from 0.5 to 10 s, with both sources, a leader is killed over and over, and in another
run paused for 0.3 to 3 s, as a stalled machine or a collector of garbage would. Counted are
messages lost, written twice, handed out again and late, and leaders who lost their lease alive.
Each case of RESULTS.md has two samples, one of each source. Takes about nine minutes; a smoke run
has two leases only.
"""

import argparse
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

from benchmarks.harness import Bar, Report, Tick, is_smoke, scale, scaled, wrapped
from benchmarks.lease_cell import LATE_S, PAUSE_S, Cell, Measured, Trouble, try_side_by_side
from benchmarks.lease_plot import Panel, line_chart
from benchmarks.machine import Facts, facts, scratch_folder, version
from benchmarks.recording import options_of
from tests.dispatch.chaos.plan import SourceKind
from tests.dispatch.chaos.stage import Stage
from tests.kit.fork_server import ForkServer

FOLDER = Path(__file__).parent
LEASES_S = (0.5, 1.0, 2.0, 3.0, 5.0, 10.0)
SMOKE_LEASES_S = (0.5, 1.0)
DEFAULT_S = 2.0
SOURCE_KINDS: tuple[SourceKind, ...] = ("stream", "pubsub")
TROUBLES: tuple[Trouble, ...] = ("kills", "pauses")
RATE = 200
SECONDS = 75
HEADERS = (
    "source", "trouble", "lease s", "messages", "faults", "take-overs", "of living leaders",
    "without leader s, median", "longest", "lost", "written twice", "handed out again",
    "delay ms, p50", "p99", "max s", "later than 1 s", "per fault",
)  # fmt: skip


def leases_s() -> tuple[float, ...]:
    """Give the leases of this run."""
    return SMOKE_LEASES_S if is_smoke() else LEASES_S


def measure(seconds: float, tick: Tick) -> list[Measured]:
    """Try everything, the four cells of a lease side by side."""
    found: list[Measured] = []
    with (
        scratch_folder() as folder,
        ForkServer("tests.dispatch.chaos.program") as fork_server,
        Stage(folder / "redis", is_replicated=False) as stage,
    ):
        for lease_s in leases_s():
            tick(f"lease {lease_s:g} s")
            cells = [
                Cell(source_kind, trouble, lease_s, RATE, max(seconds, 2 * lease_s + 5))
                for trouble in TROUBLES
                for source_kind in SOURCE_KINDS
            ]
            place = folder / f"{lease_s:g}"
            found += try_side_by_side(cells, stage=stage, fork_server=fork_server, folder=place)
            stage.clear()
    return sorted(found, key=lambda each: (_order(each.cell), each.cell.lease_s))


def _order(cell: Cell) -> tuple[int, int]:
    return TROUBLES.index(cell.trouble), SOURCE_KINDS.index(cell.source_kind)


def row(each: Measured) -> list[str]:
    """Return a row of the table."""
    cell, taken = each.cell, each.take_overs
    return [
        cell.source_kind, cell.trouble, f"{cell.lease_s:g}", f"{each.published:,}",
        str(each.faults), str(len(taken)), str(each.false),
        f"{median(taken):.2f}" if taken else "-",
        f"{max(taken):.2f}" if taken else "-", str(each.lost), str(each.written_twice),
        str(each.handed_out_again), f"{each.delay(0.5) * 1_000:.0f}",
        f"{each.delay(0.99) * 1_000:,.0f}", f"{each.delay(1.0):.1f}", f"{each.late:,}",
        f"{each.late / each.faults:.0f}" if each.faults else "-",
    ]  # fmt: skip


def table(found: Iterable[Measured]) -> list[str]:
    """Return the table in Markdown."""
    lines = [f"| {' | '.join(HEADERS)} |", f"|{'---|' * 2}{'---:|' * (len(HEADERS) - 2)}"]
    return [*lines, *(f"| {' | '.join(row(each))} |" for each in found)]


def _one(found: Sequence[Measured], trouble: Trouble, lease_s: float) -> list[Measured]:
    return [each for each in found if (each.cell.trouble, each.cell.lease_s) == (trouble, lease_s)]


def _away(found: Sequence[Measured], lease_s: float) -> float:
    return median([s for each in _one(found, "kills", lease_s) for s in each.take_overs] or [0.0])


def _false_share(found: Sequence[Measured], lease_s: float) -> float:
    cells = _one(found, "pauses", lease_s)
    return sum(each.false for each in cells) / max(1, sum(each.faults for each in cells))


def _late_by_fault(found: Sequence[Measured], trouble: Trouble, lease_s: float) -> float:
    cells = _one(found, trouble, lease_s)
    return sum(each.late for each in cells) / max(1, sum(each.faults for each in cells))


def words(found: Sequence[Measured]) -> list[str]:
    """Answer the question, with the numbers of this run."""
    lost, twice = sum(each.lost for each in found), sum(each.written_twice for each in found)
    again = sum(each.handed_out_again for each in found)
    total = sum(each.published for each in found)
    unasked = sum(each.false for each in found if each.cell.trouble == "kills")
    spans = ", ".join(f"{_away(found, lease_s):.2f} s at {lease_s:g} s" for lease_s in LEASES_S)
    shares = ", ".join(
        f"{_false_share(found, lease_s):.0%} at {lease_s:g} s" for lease_s in LEASES_S
    )
    killed = ", ".join(
        f"{_late_by_fault(found, 'kills', lease_s):.0f} at {lease_s:g} s" for lease_s in LEASES_S
    )
    paused = ", ".join(
        f"{_late_by_fault(found, 'pauses', lease_s):.0f} at {lease_s:g} s" for lease_s in LEASES_S
    )
    return [
        f"- **Safety does not depend on the lease.** Of {total:,} messages {lost} were lost and"
        f" {twice} written twice, at any lease, with either source; {again:,} deliveries were"
        " repeats, and none of them became a second entry. Epochs, fences and dedup see to that,"
        " not time.",
        f"- **A crash costs about the lease.** Without a leader after a kill (median): {spans}."
        f" Messages later than {LATE_S:g} s for each kill, at {RATE} a second: {killed}.",
        f"- **A stall costs the lease only if it is longer.** Pauses of {PAUSE_S[0]:g} to"
        f" {PAUSE_S[1]:g} s that cost a living leader its lease: {shares}. That is no harm in"
        f" itself: another goes on. Messages later than {LATE_S:g} s for each pause: {paused}.",
        f"- Leaders that lost their lease with no fault at all, in the runs with kills: {unasked}"
        " in all.",
    ]


def verdict(found: Sequence[Measured]) -> list[str]:
    """Say whether the default is right, as far as these numbers tell."""
    away = {lease_s: _away(found, lease_s) for lease_s in LEASES_S}
    lost = {lease_s: _false_share(found, lease_s) for lease_s in LEASES_S}
    killed = {lease_s: _late_by_fault(found, "kills", lease_s) for lease_s in LEASES_S}
    paused = {lease_s: _late_by_fault(found, "pauses", lease_s) for lease_s in LEASES_S}
    is_shorter_better = killed[1.0] < killed[DEFAULT_S] and paused[1.0] < paused[DEFAULT_S]
    answer = (
        "It is safe, as every lease here is, and cautious rather than quick: 1 s did better"
        if is_shorter_better
        else "Yes: it is safe, as every lease here is, and 1 s did not do better"
    )
    return [
        f"**Is {DEFAULT_S:g} s right?** {answer}. After a crash {DEFAULT_S:g} s leaves"
        f" {away[DEFAULT_S]:.1f} s without a leader and {killed[DEFAULT_S]:.0f} messages later than"
        f" {LATE_S:g} s; 1 s leaves {away[1.0]:.1f} s and {killed[1.0]:.0f}, 5 s {away[5.0]:.1f} s"
        f" and {killed[5.0]:.0f}. Of stalls of {PAUSE_S[0]:g} to {PAUSE_S[1]:g} s it rides out"
        f" {1 - lost[DEFAULT_S]:.0%}, 1 s {1 - lost[1.0]:.0%}, 5 s {1 - lost[5.0]:.0%}; but to ride"
        " a stall out is to wait for its end, and a hand-over costs no message: late for each"
        f" stall were {paused[1.0]:.0f} messages at 1 s, {paused[DEFAULT_S]:.0f} at"
        f" {DEFAULT_S:g} s, {paused[5.0]:.0f} at 5 s.",
        "",
        f"So with Redis near and standbys that listen, set 1 s if messages must not wait; 0.5 s"
        f" gains {away[1.0] - away[0.5]:.1f} s a crash on top, and hands over at nearly every"
        f" stall. What speaks for {DEFAULT_S:g} s as the default was not measured here: a Redis"
        " that answers slowly (of three renewals in a lease two may fail; at 2 s each has 600 ms,"
        " at 1 s only 300), machines busier than this one, and hand-overs of a large backlog,"
        f" which the next leader must load. Beyond 3 s crashes become dearer ({killed[3.0]:.0f}"
        f" late messages at 3 s, {killed[10.0]:.0f} at 10 s) and stalls no cheaper.",
    ]


def page(found: Sequence[Measured], machine: Facts, seconds: float) -> str:
    """Return lease.md."""
    names = ("cpu", "cores", "memory_gb", "kernel", "python", "load_1m")
    about = ", ".join(f"{name} {machine[name]}" for name in names)
    return "\n".join(
        wrapped(line)
        for line in [
            "# How long should the lease be?",
            "",
            f"Measured {datetime.now(UTC):%Y-%m-%d} at {version()}: {about}. Redis 7 with"
            f" `appendfsync always`, a leader and two standbys, two workers, {RATE} messages a"
            f" second for {seconds:g} s a row; the four rows of a lease run side by side. Kills"
            " come every lease + 4 s, and the killed is replaced; pauses (SIGSTOP) every 5 s, the"
            " same for every lease.",
            "`python -m benchmarks.lease --record` writes this page.",
            "",
            "![lost leases and late messages by lease](lease.svg)",
            "",
            *verdict(found),
            "",
            *words(found),
            "",
            *table(found),
            "",
            "*Handed out again* counts deliveries beyond the first of each message, *written"
            " twice* entries of the output beyond the first. *Without leader* is from the kill, or"
            " the beginning of the pause, until another holds the lock. *Delay* is from publishing"
            " to the entry's id.",
            "",
        ]
    )


def picture(found: Sequence[Measured]) -> str:
    """Return lease.svg."""
    kills: dict[str, list[tuple[float, float]]] = {}
    late: dict[str, list[tuple[float, float]]] = {}
    lost: dict[str, list[tuple[float, float]]] = {}
    for each in found:
        cell = each.cell
        of_fault = each.late / max(1, each.faults)
        late.setdefault(f"{cell.trouble}, {cell.source_kind}", []).append((cell.lease_s, of_fault))
        if cell.trouble == "kills" and each.take_overs:
            point = (cell.lease_s, median(each.take_overs))
            kills.setdefault(cell.source_kind, []).append(point)
        elif cell.trouble == "pauses":
            share = 100 * each.false / max(1, each.faults)
            lost.setdefault(cell.source_kind, []).append((cell.lease_s, share))
    panels = [
        Panel("s without a leader after a kill, median", kills),
        Panel("% of pauses (0.3-3 s) that cost the lease", lost),
        Panel(f"messages later than {LATE_S:g} s, for each fault", late),
    ]
    return line_chart("What the lease trades", panels, ticks=LEASES_S)


def add_all(report: Report, found: Sequence[Measured]) -> None:
    """Put what the table tells by lease, and over all, into the report."""
    by_fault: list[tuple[str, Trouble, str, Callable[[Measured], float]]] = [
        ("without_leader_s", "kills", "s", lambda each: median(each.take_overs or [0.0])),
        ("late_by_kill", "kills", "messages", lambda each: each.late / max(1, each.faults)),
        ("lost_by_pause", "pauses", "of pauses", lambda each: each.false / max(1, each.faults)),
        ("late_by_pause", "pauses", "messages", lambda each: each.late / max(1, each.faults)),
    ]
    for name, trouble, unit, of in by_fault:
        for lease_s in leases_s():
            samples = [float(of(each)) for each in _one(found, trouble, lease_s)]
            report.add(f"lease_{lease_s * 1_000:.0f}ms_{name}", samples, unit)
    none = Bar(0, is_floor=False)
    report.add("lost", [float(sum(each.lost for each in found))], "messages", bar=none)
    twice = float(sum(each.written_twice for each in found))
    report.add("written_twice", [twice], "messages", bar=none)


def main() -> None:
    """Measure; write the page and the picture, if this run is to be recorded."""
    # Not above: the processes this one starts would load it in vain.
    from benchmarks.display import progress

    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.lease", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    options = options_of(parser, what="lease.md, lease.svg and RESULTS.md")
    seconds = scaled(SECONDS, least=8)
    with scratch_folder() as folder:
        report = Report("lease", facts(folder, scale=scale()))
    with progress("lease", steps=len(leases_s())) as tick:
        found = measure(seconds, tick)
    add_all(report, found)
    report.finish()
    if options.record:
        report.record("python -m benchmarks.lease --record")
        (FOLDER / "lease.md").write_text(page(found, report.machine, seconds))
        (FOLDER / "lease.svg").write_text(picture(found))
    print("\n".join(table(found)))
    report.publish()


if __name__ == "__main__":
    main()
