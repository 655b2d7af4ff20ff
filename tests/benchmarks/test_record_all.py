"""`make record` records every benchmark there is, also behind one that fails."""

import re
import subprocess
import sys
from pathlib import Path

from benchmarks.record_all import interrupt, record_all, run
from tests.benchmarks.test_smoke import CASES

ROOT = Path(__file__).parents[2]


def benches():
    """Give the benchmarks that `make` knows."""
    makefile = (ROOT / "Makefile").read_text()
    (names,) = re.findall(r"^BENCHES := (.*)$", makefile, re.MULTILINE)
    return names.split()


def test_make_knows_every_benchmark_of_which_there_is_a_smoke_run():
    assert sorted(benches()) == sorted(CASES)


def test_every_benchmark_can_be_recorded():
    sources = {bench: (ROOT / "benchmarks" / f"{bench}.py").read_text() for bench in benches()}

    assert [bench for bench, text in sources.items() if "--record  " not in text] == []
    asks = re.compile(r"= options_of\(parser|\brun_bench\(")
    assert [bench for bench, text in sources.items() if not asks.search(text)] == []


def test_one_that_fails_is_named_at_the_end_and_the_others_run(capsys):
    reasons = {"log": "", "publish": "FAILED: no disk", "lease": ""}
    asked: list[str] = []

    def record(bench):
        asked.append(bench)
        return reasons[bench]

    assert record_all(list(reasons), record) == ["publish"]
    assert asked == list(reasons)
    lines = [re.sub(r"\(\d+ s\)", "(… s)", line) for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        "1/3 log …", "1/3 log: recorded (… s)",
        "2/3 publish …", "2/3 publish: FAILED: no disk (… s)",
        "3/3 lease …", "3/3 lease: recorded (… s)",
    ]  # fmt: skip


def python(code):
    return [sys.executable, "-c", code]


def test_what_one_printed_is_kept_and_its_last_line_is_the_reason(tmp_path):
    log = tmp_path / "log"

    assert run(python("print('fine')"), log) == ""
    assert log.read_text() == "fine\n"
    assert run(python("print(1); raise SystemExit('too busy')"), log) == "FAILED: too busy"
    assert run(python("raise SystemExit(3)"), log) == "FAILED: status 3"


def test_one_that_takes_too_long_has_failed(tmp_path):
    found = run(python("import time; time.sleep(600)"), tmp_path / "log", seconds_max=0.1)

    assert found == "FAILED: not done after 0.1 s"


def test_one_that_is_interrupted_cleans_up():
    code = "try:\n    print(1, flush=True); input()\nfinally:\n    print('cleaned up')"
    pipe = subprocess.PIPE
    with subprocess.Popen(python(code), stdin=pipe, stdout=pipe, stderr=pipe) as process:
        out = process.stdout
        assert out is not None
        assert out.readline() == b"1\n"

        interrupt(process)

        assert out.read() == b"cleaned up\n"
