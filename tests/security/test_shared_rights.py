"""Shared rights: whatever people do to the folders of nodes, in whatever order it is heard of, all
nodes come to let in the same principals, and nobody who was removed."""

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kit.examples import examples
from waterclock.security.principals import PRINCIPALS_MAX, PrincipalRecord, TokenRecord
from waterclock.security.shared_rights import (
    UNKNOWN,
    Change,
    Common,
    Records,
    Standing,
    Standings,
    begun,
    decided,
    exchanged,
    merged,
)

NODES = 3
NAMES = ("ada", "bob")
Deed = Literal["add", "renew", "revoke", "hear", "share", "stop", "start", "crash"]


class Step(NamedTuple):
    """Something that happens at a node, to a principal if people do it."""

    deed: Deed
    node: int
    name: str


steps = st.builds(
    Step,
    st.sampled_from(["add", "add", "renew", "revoke", "revoke", "hear", "share", "share"])
    | st.sampled_from(["stop", "start", "crash"]),
    st.integers(0, NODES - 1),
    st.sampled_from(NAMES),
)
histories = st.lists(steps, max_size=40)


def record(made_ms: int, *tokens: int, admin: bool = False) -> PrincipalRecord:
    return PrincipalRecord(
        made_ms,
        {"admin": ["*"]} if admin else {"read": ["a"]},
        tokens={str(each): TokenRecord("k", 1 << 40) for each in tokens},
    )


def active(made_ms: int, *tokens: int, admin: bool = False) -> Standing:
    return Standing(record(made_ms, *tokens, admin=admin))


def ended(ended_ms: int) -> Standing:
    return Standing(ended_ms=ended_ms)


@dataclass
class Folder:
    """What a node has on disk."""

    found: dict[str, PrincipalRecord]
    common: Common | None = None
    changed_ms: int = 0


@dataclass
class ModelNode:
    """A node: its folder, and how much of the records it has heard of."""

    folder: Folder
    skew_ms: int = 0
    heard: int = 0
    is_up: bool = True
    crashes: bool = False
    """It ends when it has written principals, and nothing else."""


@dataclass
class Model:
    """Nodes, and the records that they share."""

    nodes: list[ModelNode]
    now_ms: int = 1_000
    revisions: list[Standings] = field(default_factory=list)
    deeds: list[tuple[Deed, str, int]] = field(default_factory=list)
    """What people did: to whom, and when, or which token they gave."""
    unseen: set[str] = field(default_factory=set)
    """Who was added and removed before any node looked."""
    is_blind: bool = False
    """Something was done to the folder of a node that was down: when, nobody can say exactly."""

    def __post_init__(self) -> None:
        first = self.nodes[0]
        first.folder.common = begun(first.folder.found, "r")
        self.revisions = [first.folder.common.principals]
        for node in self.nodes:
            self._look(node)

    def play(self, step: Step) -> None:
        self.now_ms += 10
        node = self.nodes[step.node]
        match step.deed:
            case "add" | "renew" | "revoke":
                self._change(step.deed, node, step.name)
            case "hear":
                self.hear(node, node.heard + 1)
            case "share":
                self.share(node)
            case "stop":
                node.is_up = False
            case "start":
                node.is_up = True
            case "crash":
                node.crashes = True

    def _change(self, deed: Deed, node: ModelNode, name: str) -> None:
        folder, now_ms = node.folder, self.now_ms + node.skew_ms
        before = folder.found.get(name)
        if before is None and deed != "add":
            return
        assert folder.common is not None
        common = folder.common.principals
        if deed == "revoke":
            del folder.found[name]
            known = common.get(name, UNKNOWN)
            if (
                known.principal is None and folder.common.pending.get(name, 0) <= known.at_ms
            ):  # no node has seen it: others of that name may be meant, or not
                self.unseen.add(name)
            self.deeds.append((deed, name, self.now_ms))
        elif deed == "renew":
            assert before is not None
            folder.found[name] = record(before.made_ms, *map(int, before.tokens), self.now_ms)
        else:
            known_ms = max(0 if before is None else before.made_ms, common.get(name, UNKNOWN).at_ms)
            made_ms = max(now_ms, known_ms + 1)
            folder.found[name] = record(made_ms, self.now_ms)
            self.deeds.append((deed, name, self.now_ms))
        folder.changed_ms = now_ms
        self.is_blind = self.is_blind or not node.is_up
        self._look(node)

    def hear(self, node: ModelNode, heard: int) -> None:
        """Have a node hear of the records until a revision."""
        node.heard = min(heard, len(self.revisions) - 1)
        self._look(node)

    def _look(self, node: ModelNode) -> tuple[Change, ...]:
        """Do what a node does when it was changed, or heard of something."""
        if not node.is_up:
            return ()
        folder = node.folder
        records = Records("r", node.heard + 1, self.revisions[node.heard])
        result = exchanged(folder.found, folder.common, records, changed_ms=folder.changed_ms)
        if result.found != folder.found:
            folder.found, folder.changed_ms = result.found, self.now_ms + node.skew_ms
        if node.crashes:
            node.crashes, node.is_up = False, False
            return ()
        folder.common = result.common
        return result.changes

    def share(self, node: ModelNode) -> bool:
        """Have a node tell the records what it has to; say if there was anything."""
        changes = self._look(node)
        standings = self.revisions[-1]
        written = decided(changes, standings, keeps_admin=True).written
        if written:
            self.revisions.append({**standings, **written})
        return bool(changes)

    def settle(self) -> None:
        """Let everyone come back and hear of everything."""
        for node in self.nodes:
            node.is_up, node.crashes = True, False
        for _ in range(10):
            for node in self.nodes:
                self.hear(node, len(self.revisions))
            have_changes = [self.share(node) for node in self.nodes]
            if not any(have_changes):
                return
        raise AssertionError("the nodes do not come to an end")


def played(history: list[Step], *, skews: tuple[int, ...] = (0, 0, 0), shared: bool = False):
    """Return nodes after all that happened, when they have heard of everything."""
    folders = [Folder({"ada": record(1, 1)}) for _ in range(NODES)]
    if shared:  # two nodes go by one folder
        folders[2] = folders[1]
    model = Model([ModelNode(*each) for each in zip(folders, skews, strict=True)])
    for step in history:
        model.play(step)
    model.settle()
    return model


def check_agreed(model: Model) -> None:
    expected = {n: s.principal for n, s in model.revisions[-1].items() if s.principal is not None}
    for node in model.nodes:
        assert node.folder.found == expected
        assert node.folder.common is not None
        assert node.folder.common.principals == model.revisions[-1]


@settings(max_examples=examples(600))
@given(histories)
def test_all_nodes_come_to_know_the_same_and_the_last_word_of_people_holds(history):
    model = played(history)

    check_agreed(model)
    found = model.nodes[0].folder.found
    for name in NAMES:
        words = [(deed, at_ms) for deed, about, at_ms in model.deeds if about == name]
        if words and words[-1][0] == "revoke" and name not in model.unseen:
            assert name not in found
        if words and words[-1][0] == "add" and not model.is_blind:
            assert str(words[-1][1]) in found[name].tokens


@settings(max_examples=examples(300))
@given(
    histories,
    st.tuples(*[st.sampled_from([-5_000, 0, 35, 5_000])] * NODES),
    st.booleans(),
)
def test_nodes_agree_whatever_their_clocks_say_and_if_two_go_by_one_folder(history, skews, shared):
    check_agreed(played(history, skews=skews, shared=shared))


def test_who_is_removed_while_the_records_have_just_heard_of_them_stays_removed():
    model = played([Step("add", 0, "bob"), Step("share", 0, ""), Step("revoke", 0, "bob")])

    assert [*model.nodes[0].folder.found] == ["ada"]


def test_who_is_added_anew_stays_though_a_node_that_was_cut_off_had_removed_them_before():
    model = played(
        [
            Step("revoke", 1, "ada"),
            Step("add", 2, "ada"),
            Step("add", 1, "bob"),  # when the file is changed is not when ada was removed
            Step("share", 2, ""),
        ]
    )

    assert sorted(model.nodes[1].folder.found) == ["ada", "bob"]


@pytest.mark.parametrize(
    ("base", "mine", "theirs", "holds"),
    [
        pytest.param(active(1), ended(5), active(1), ended(5), id="removed here"),
        pytest.param(active(1), active(1), ended(5), ended(5), id="removed elsewhere"),
        pytest.param(active(1), active(1, 7), ended(5), ended(5), id="renewed, and removed"),
        pytest.param(active(1), active(4), ended(5), ended(5), id="replaced before it was removed"),
        pytest.param(active(1), active(6), ended(5), active(6), id="added after it was removed"),
        pytest.param(active(1), ended(5), active(5), ended(5), id="at the same time"),
        pytest.param(ended(5), active(4, 9), ended(5), ended(5), id="an old copy"),
        pytest.param(active(4), active(1, 9), active(4), active(4), id="an old copy of another"),
        pytest.param(active(1), active(1, 9), UNKNOWN, ended(1), id="ended long ago"),
        pytest.param(active(1), active(6), UNKNOWN, active(6), id="ended long ago, added since"),
        pytest.param(UNKNOWN, active(3), UNKNOWN, active(3), id="somebody new"),
        pytest.param(UNKNOWN, active(3, 1), active(4, 2), active(4, 2), id="added twice"),
        pytest.param(
            active(1, 1, 2, 3),
            active(1, 2, 3, 4),
            active(1, 1, 3, 5),
            active(1, 3, 4, 5),
            id="tokens were given and taken on both sides",
        ),
        pytest.param(
            active(1, 1),
            active(1, 1, admin=True),
            active(1, 1, 2),
            active(1, 1, 2, admin=True),
            id="the file was edited here",
        ),
    ],
)
def test_which_of_two_standings_holds(base, mine, theirs, holds):
    assert merged(base, mine, theirs) == holds


def test_a_folder_with_nothing_in_common_takes_the_records_and_tells_who_is_dropped():
    found = {"ada": record(9), "eve": record(2), "odd": record(3)}
    records = Records("r", 7, {"ada": active(5), "bob": ended(4)}, unclear={"odd"})
    foreign = Common("another", 99, {"eve": active(2)})

    for common in (None, foreign):
        result = exchanged(found, common, records, changed_ms=10)
        assert result.found == {"ada": record(5), "odd": record(3)}
        assert result.common == Common("r", 7, {"ada": active(5), "bob": ended(4)})
        assert (result.changes, result.dropped) == ((), ("eve",))


def test_a_record_that_is_not_understood_leaves_the_folder_as_it_is():
    common = Common("r", 6, {"ada": active(1)})
    records = Records("r", 7, {}, unclear={"ada"})

    assert exchanged({"ada": record(1)}, common, records, changed_ms=9).found == {"ada": record(1)}
    changed = exchanged({"ada": record(8)}, common, records, changed_ms=9)
    assert changed.found == {"ada": record(8)}
    assert changed.changes == (Change("ada", active(1), active(8)),)
    answer = decided(changed.changes, {}, unclear={"ada"}, keeps_admin=True)
    assert answer.written == {}
    assert "not understood" in answer.refused["ada"]
    removal = Change("ada", active(1), ended(9))
    assert decided([removal], {}, unclear={"ada"}, keeps_admin=True).written == {"ada": ended(9)}


def test_a_node_that_is_behind_takes_nothing_away_from_a_folder_that_others_go_by():
    common = Common("r", 7, {"ada": active(1)})

    result = exchanged({"ada": record(1)}, common, Records("r", 6, {}), changed_ms=9)

    assert (result.found, result.common, result.changes) == ({"ada": record(1)}, common, ())


def test_of_two_admins_who_remove_each_other_at_two_nodes_one_stays():
    both = {"ada": active(1, admin=True), "bob": active(1, admin=True), "eve": active(1)}
    no_ada = Change("ada", both["ada"], ended(5))
    no_bob = Change("bob", both["bob"], ended(6))

    first = decided([no_ada], both, keeps_admin=True)
    second = decided([no_bob], {**both, **first.written}, keeps_admin=True)
    meant = decided([no_ada, no_bob], both, keeps_admin=False)

    assert (first.written, first.kept) == ({"ada": ended(5)}, ())
    assert (second.written, second.kept) == ({}, ("bob",))
    assert meant.written == {"ada": ended(5), "bob": ended(6)}
    common = Common("r", 1, {"bob": active(1, admin=True)})
    records = Records("r", 2, {"ada": ended(5), "bob": active(1, admin=True)})
    result = exchanged({}, common, records, changed_ms=6, kept=second.kept)
    assert result.found == {"bob": record(1, admin=True)}
    assert result.changes == ()


def test_there_are_no_more_principals_than_may_be():
    standings = {str(number): active(1) for number in range(PRINCIPALS_MAX)}
    changes = [Change("ada", UNKNOWN, active(2)), Change("0", active(1), active(1, 5))]

    answer = decided(changes, standings, keeps_admin=False)

    assert answer.written == {"0": active(1, 5)}
    assert "no more" in answer.refused["ada"]
