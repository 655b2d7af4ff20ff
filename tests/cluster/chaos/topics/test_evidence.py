"""What is kept of rounds: all of one with findings, within bounds, and nothing of another."""

from pathlib import Path

from tests.cluster.chaos.topics import evidence
from tests.cluster.chaos.topics.evidence import Evidence
from tests.cluster.chaos.topics.plan import Fault, Plan, Role, Step
from tests.cluster.chaos.topics.record import Delivered, Performed, Refusal, RoundRecord
from tests.cluster.history.events import Healed
from tests.kit.verdict import Verdict

LOSS = Step(100, Fault.LOSS, Role.ALL, 50, loss=0.1)


def kept_of(folder: Path, verdict: Verdict, *, rounds: int = 1) -> list[Path | None]:
    """Play rounds that end so, in which a node writes a line each."""
    log = folder / "node-1.log"
    log.write_text("of before\n")
    keeping = Evidence(folder / "kept", [log, folder / "etcd.log"])
    kept = []
    for number in range(rounds):
        record = RoundRecord(Plan(7, number, "loss", (LOSS,)), events=[Healed(400)])
        record.performed.append(Performed(LOSS, "node-1", 100, 150))
        record.delivered.append(Delivered("g0", "t/0", 0, "m1", 320))
        record.refusals.append(Refusal(210, "grpc subscribe", "Unavailable"))
        record.stuck.append("node-1: groups: none")
        keeping.begin()
        with log.open("a") as file:
            file.write(f"of round {number}\n")
        kept.append(keeping.keep(record, verdict))
    return kept


def found() -> Verdict:
    verdict = Verdict()
    verdict.findings.add("undelivered", "m2 to g0")
    return verdict


def test_a_round_with_findings_is_kept_with_all_that_explains_it(tmp_path):
    (folder,) = kept_of(tmp_path, found())

    assert folder is not None
    texts = {each.name: each.read_text() for each in folder.iterdir()}
    assert "packets lost" in texts["plan"]
    assert "node-1" in texts["plan"]
    assert "m2 to g0" in texts["findings"]
    assert "Healed" in texts["history"]
    assert texts["delivered"] == "g0 t/0 0 m1 320\n"
    assert texts["refusals"] == "210 grpc subscribe Unavailable\n"
    assert texts["stuck"] == "node-1: groups: none\n"
    assert texts["node-1.log"] == "of round 0\n"
    assert texts["etcd.log"] == ""


def test_a_round_without_findings_leaves_nothing(tmp_path):
    assert kept_of(tmp_path, Verdict()) == [None]
    assert not (tmp_path / "kept").exists()


def test_what_is_kept_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(evidence, "LOG_BYTES_MAX", 4)
    monkeypatch.setattr(evidence, "ROUNDS_MAX", 2)

    first, second, third = kept_of(tmp_path, found(), rounds=3)

    assert first is not None
    assert (first / "node-1.log").read_text() == "d 0\n"
    assert second is not None
    assert third is None
