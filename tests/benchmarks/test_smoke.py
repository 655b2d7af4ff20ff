"""The benchmarks still run: a tiny one each, and the line for machines is what was agreed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

LOG_CASES = {
    "append_1000_group_dedup": "messages/s",
    "append_1000_interval": "messages/s",
    "append_1_cpu_us": "us",
    "read_frames": "messages/s",
    "dedup_ids": "ids/s",
    "dedup_rss_mb": "MB",
    "dedup_start_s": "s",
    "open_sidecars_s": "s",
    "open_rebuild_s": "s",
}


def last_line_of(bench, *, data):
    environ = {**os.environ, "BENCH_SCALE": "0.0005", "BENCH_DATA": str(data)}
    environ["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", f"benchmarks.{bench}"]
    run = subprocess.run(
        command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def log_run(tmp_path_factory):
    data = tmp_path_factory.mktemp("bench")
    answer = last_line_of("log", data=data)
    return answer, data


def test_the_last_line_has_the_agreed_shape(log_run):
    answer, _ = log_run

    assert list(answer) == ["bench", "results", "peers", "ratios", "machine", "version"]
    assert answer["bench"] == "log"
    assert all(set(result) == {"value", "unit"} for result in answer["results"].values())
    assert {"cpu", "cores", "memory_gb", "kernel", "disk", "python"} <= set(answer["machine"])


def test_every_agreed_case_of_the_log_is_measured(log_run):
    results = log_run[0]["results"]

    assert {case: results[case]["unit"] for case in LOG_CASES} == LOG_CASES
    assert [case for case, result in results.items() if not result["value"] > 0] == []


def test_nothing_is_left_on_the_disk(log_run):
    _, data = log_run

    assert not data.exists() or not list(data.iterdir())
