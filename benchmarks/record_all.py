"""Records benchmarks one after the other: `make record`, on a machine with nothing else to do.

Each runs as `python -m benchmarks.<name> --record`, which waits until the machine is quiet and then
writes its part of RESULTS.md. One that fails, or takes longer than any should, is left behind, and
named at the end. What they print is in `bench-data/record`, a file each.
"""

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.machine import ROOT

LOGS = ROOT / "bench-data" / "record"
BENCH_S_MAX = 3_600.0
"""Longer than any takes: one that hangs must not keep the others from being recorded."""
CLEAN_UP_S_MAX = 60.0
"""For one that was interrupted to end its servers and delete its files."""


def main() -> None:
    """Record those that are named."""
    LOGS.mkdir(parents=True, exist_ok=True)
    failed = record_all(sys.argv[1:], record)
    if failed:
        sys.exit(f"Not recorded: {', '.join(failed)}. What they printed is in {LOGS}")


def record_all(benches: Sequence[str], record: Callable[[str], str]) -> list[str]:
    """Record all, with a line for each; return those that failed."""
    failed = []
    for number, bench in enumerate(benches, 1):
        begun = time.monotonic()
        what = f"{number}/{len(benches)} {bench}"
        print(f"{what} …", flush=True)
        reason = record(bench)
        took_s = time.monotonic() - begun
        print(f"{what}: {reason or 'recorded'} ({took_s:,.0f} s)", flush=True)
        if reason:
            failed.append(bench)
    return failed


def record(bench: str) -> str:
    """Record one; return why that failed, or nothing."""
    return run([sys.executable, "-m", f"benchmarks.{bench}", "--record"], LOGS / f"{bench}.log")


def run(command: Sequence[str], log: Path, *, seconds_max: float = BENCH_S_MAX) -> str:
    """Run a program, its output in a file; return why it failed, or nothing."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )
        try:
            status = process.wait(seconds_max)
        except subprocess.TimeoutExpired:
            interrupt(process)
            return f"FAILED: not done after {seconds_max:g} s"
        except BaseException:  # Ctrl-C reaches it too: let it clean up before this ends
            interrupt(process)
            raise
    if not status:
        return ""
    lines = log.read_text(errors="replace").strip().splitlines()
    return f"FAILED: {lines[-1] if lines else f'status {status}'}"


def interrupt(process: "subprocess.Popen[bytes]") -> None:
    """Ask a benchmark to end as by Ctrl-C, so that it ends what it started; else end it."""
    process.send_signal(signal.SIGINT)
    try:
        process.wait(CLEAN_UP_S_MAX)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


if __name__ == "__main__":
    main()
