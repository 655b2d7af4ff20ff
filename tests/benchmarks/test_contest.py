"""Comparisons are fair and say what they left out."""

from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from benchmarks.client import Stopwatch
from benchmarks.contest import Case, Contest, add_rates, compare
from benchmarks.harness import Report
from benchmarks.peers.cache import Absent, cached
from benchmarks.peers.lineup import lineup


@pytest.fixture
def report():
    return Report("try", {})


@contextmanager
def there(folder):
    yield SimpleNamespace(version="1.2")


@contextmanager
def absent(folder):
    raise Absent("there is no such thing")
    yield


def ignore(_):
    pass


def took(seconds):
    return lambda _: Stopwatch(0, messages=100, wall_s=seconds)


def contest(openers, *, ours=(), theirs=()):
    return Contest("try", openers, ours, theirs, rounds=2)


def test_a_peer_that_cannot_be_had_is_named_with_the_reason_and_the_others_run(report, tmp_path):
    with lineup(report, tmp_path, {"node": there, "a": absent, "b": there}, ignore) as servers:
        assert list(servers) == ["node", "b"]

    assert report.machine == {"b": "1.2"}
    assert report.notes == ["Absent: a, because there is no such thing."]


@pytest.mark.parametrize("ours", ["node", "waterclock"])
def test_our_own_must_be_there(report, tmp_path, ours):
    with pytest.raises(Absent), lineup(report, tmp_path, {ours: absent}, ignore):
        pass


def test_our_own_are_never_left_out(report, tmp_path, monkeypatch):
    monkeypatch.setenv("BENCH_PEERS", "none")
    openers = {"node": there, "node_tls": there, "waterclock": there}

    with lineup(report, tmp_path, openers, ignore) as servers:
        assert list(servers) == list(openers)


def test_peers_can_be_left_out(report, tmp_path, monkeypatch):
    monkeypatch.setenv("BENCH_PEERS", "b,c")
    openers = {"node": there, "a": there, "b": there, "c_nosync": there}

    with lineup(report, tmp_path, openers, ignore) as servers:
        assert list(servers) == ["node", "b", "c_nosync"]

    assert report.notes == ["Left out by BENCH_PEERS: a."]


def test_our_rounds_alternate_with_those_of_the_peers(report, tmp_path):
    ours = [Case("x", "node", took(1)), Case("y", "node", took(1))]
    theirs = [Case(f"{peer}_x", peer, took(2)) for peer in ("a", "b", "c")]
    progress: list[str] = []

    tried = contest({"node": there, "a": there, "b": absent, "c": there}, ours=ours, theirs=theirs)
    tried.run(report, tmp_path, progress.append)

    assert progress[4:] == ["x", "a_x", "y", "c_x"] * 2


def test_a_ratio_is_ours_by_theirs_and_only_for_those_measured(report, tmp_path):
    ours, theirs = (
        [Case("x", "node", took(1))],
        [Case("a_x", "a", took(4)), Case("b_x", "b", took(1))],
    )
    tried = contest({"node": there, "a": there, "b": absent}, ours=ours, theirs=theirs)

    add_rates(report, tried, tried.run(report, tmp_path, ignore))
    compare(report, "x", {"a": "a_x", "b": "b_x"})

    assert report.ratios == {"x_vs_a": 4.0}
    assert [result.case for result in report.results] == ["x"]
    assert [result.case for result in report.peers] == ["a_x"]


def test_a_fetch_that_fails_leaves_nothing_in_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("BENCH_CACHE", str(tmp_path / "cache"))

    def half(folder):
        (folder / "half").touch()
        raise Absent("the registry is down")

    def whole(folder):
        (folder / "whole").touch()

    with pytest.raises(Absent):
        cached("it", half)
    assert [file.name for file in cached("it", whole).iterdir()] == ["whole"]
    assert [file.name for file in cached("it", half).iterdir()] == ["whole"]
    assert [file.name for file in (tmp_path / "cache").iterdir()] == ["it"]
