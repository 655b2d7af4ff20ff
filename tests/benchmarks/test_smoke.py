"""The benchmarks still run: a tiny one each, and the line for machines is what was agreed."""

import json
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from benchmarks.peers import redis
from benchmarks.peers.cache import Absent, debian
from tests.stores.servers.registry import reason_to_skip

ROOT = Path(__file__).parents[2]

RATE = "messages/s"
SHARE = "of workers ÷ work time"
CASES = {
    "cli": {
        f"{case}_{what}": "s"
        for case in ("publish", "send", "topics", "help", "up_ready")
        for what in ("cpu_s", "s")
    },
    # Not what pages and an idle node cost: at this size that may be below a tick of the processor.
    "console": {"assets_kib": "KiB"},
    "log": {
        "append_1000_group_dedup": RATE,
        "append_1000_interval": RATE,
        "append_1_cpu_us": "us",
        "read_frames": RATE,
        "dedup_ids": "ids/s",
        "dedup_rss_mb": "MB",
        "dedup_start_s": "s",
        "open_sidecars_s": "s",
        "open_rebuild_s": "s",
    },
    "publish": {
        f"{case}{suffix}": RATE
        for way in ("", "grpc_")
        for case in (f"{way}batch_1000", f"{way}batch_4000", f"{way}single_64_callers")
        for suffix in ("", "_8p")
    },
    "consume": {"raw_batches": RATE, "async_for_acks": RATE},
    "schedule": {
        "publish": RATE,
        "pending_10m_mb": "MB",
        "restart_10m_s": "s",
        "storm_100k_lateness_p99_ms": "ms",
        "storm_stall_max_ms": "ms",
        "cancel": RATE,
    },
    "latency": {
        "publish_ack_1k_p50_ms": "ms",
        "publish_ack_1k_p99_ms": "ms",
        "publish_delivery_1k_p99_ms": "ms",
    },
    "streams": {
        "send_receive_ops": "operations/s",
        "match_100x10_p99_ms": "ms",
        "match_10k_waiters_p99_ms": "ms",
        "bytes_per_waiter": "B",
        "idle_1m_streams_mb": "MB",
        "ring_ops": "operations/s",
    },
    "burrow": {
        "noop_none": RATE,
        "noop_key": RATE,
        "efficiency_1ms": SHARE,
        "efficiency_10ms": SHARE,
        "efficiency_100ms": SHARE,
    },
    "dispatch": {"end_to_end": RATE, "takeover_s": "s"},
    "lease": {"lease_500ms_without_leader_s": "s", "lease_1000ms_without_leader_s": "s"},
    "hot_stream": {
        "everywhere_gain": "times one node's rate",
        "apart_gain": "times one node's rate",
    },
    "processes": {
        f"{case}_gain": "times one process's rate" for case in ("streams", "hot_stream", "publish")
    },
    "cluster": {
        "send_p50_front_ms": "ms",
        "receive_p50_front_ms": "ms",
        "forward_added_p50_ms": "ms",
        "front_send_receive_ops": "operations/s",
    },
    "topics": {
        "publish_rf3_1000": RATE,
        "publish_rf3_1000_4c": RATE,
        "publish_ack_1k_p99_ms": "ms",
    },
    # Not what idle nodes cost: at this size that may be below a tick of the processor.
    "failover": {
        "failover_s": "s",
        "failover_all_acks_s": "s",
        "failover_10m_s": "s",
        "failover_stop_s": "s",
        "rolling_worst_stall_ms": "ms",
        "detect_s": "s",
        "detect_stop_s": "s",
        "gossip_idle_bytes_s": "B/s",
        "follower_stopped_p99_ms": "ms",
        "many_failover_s": "s",
    },
    "quota": {
        "grpc_p99_alone_ms": "ms",
        "http_p99_alone_ms": "ms",
        "grpc_p99_beside_stream_ms": "ms",
        "http_p99_beside_http_ms": "ms",
    },
    "partitions": {
        "made_s": "s",
        "share_64_callers": "of one partition",
        "share_1024_callers": "of one partition",
        "ready_s": "s",
        "descriptors": "files",
    },
    "security": {
        "batch_token": RATE,
        "batch_tls": RATE,
        "single_token": RATE,
    },
    "spark": {
        "read_rows": "rows/s",
        "read_filtered_fraction": "of a full read",
        "write_rows": "rows/s",
        "compact_10m_s": "s",
        "fast_replay": RATE,
        "publish_p99_during_schedule_ms": "ms",
    },
}
"""The names that were agreed on, with their units; results are compared over time by them."""


LONG = {
    "spark", "burrow", "schedule", "security", "quota", "hot_stream", "dispatch", "latency",
    "partitions", "processes", "lease", "cluster", "topics", "failover",
}  # fmt: skip
"""They take seconds of CPU however little they measure: `make bench-smoke` runs them. What is left
has every kind of a benchmark: a process, a log, clients of a node, and streams."""
IS_WHOLE = bool(os.environ.get("WATERCLOCK_SMOKE_ALL"))

NEEDS_REDIS = {"dispatch", "lease"}
"""What is measured there works on Redis itself, ours too."""
NEEDS_ETCD = {"topics", "failover"}
"""Nodes that replicate have their partitions led as etcd says."""


def last_line_of(bench, *, data):
    # Peers are fetched from the network, and measured by hand.
    environ = {
        **os.environ, "BENCH_SCALE": "0.0005", "BENCH_DATA": str(data), "BENCH_PEERS": "none",
    }  # fmt: skip
    environ["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", f"benchmarks.{bench}"]
    run = subprocess.run(
        command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout.splitlines()[-1])


@pytest.mark.parametrize("bench", [bench for bench in CASES if IS_WHOLE or bench not in LONG])
def test_a_benchmark_measures_what_was_agreed_and_leaves_nothing_behind(bench, tmp_path):
    data = tmp_path / "data"
    if bench in NEEDS_REDIS:
        require(redis.programs)
    if bench in NEEDS_ETCD:
        require(etcd)

    answer = last_line_of(bench, data=data)

    assert list(answer) == ["bench", "results", "peers", "ratios", "machine", "version"]
    assert answer["bench"] == bench
    assert {"cpu", "cores", "memory_gb", "kernel", "disk", "python"} <= set(answer["machine"])
    results = answer["results"]
    assert all(set(result) == {"value", "unit"} for result in results.values())
    assert {case: results[case]["unit"] for case in CASES[bench]} == CASES[bench]
    # Others may be nothing at this size, as memory that grew by what was free before.
    assert [case for case in CASES[bench] if not results[case]["value"] > 0] == []
    assert answer["peers"] == answer["ratios"] == {}
    assert not data.exists()
    assert processes_in(data) == []


def etcd():
    """Find etcd or fetch it."""
    return debian("etcd-server", ["etcd"])


def require(programs):
    """Skip where a program is not there, and cannot be fetched."""
    try:
        programs()
    except Absent as absent:
        pytest.skip(reason_to_skip("debian", absent))


def processes_in(folder):
    """Give the command lines of processes that work in a folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if Path(os.readlink(process / "cwd").removesuffix(" (deleted)")).is_relative_to(folder):
                found.append((process / "cmdline").read_text())
    return found
