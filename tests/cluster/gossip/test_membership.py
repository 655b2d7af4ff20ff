"""Which claim about a node counts: SWIM 4.2, and what memberlist and we add."""

import pytest

from tests.cluster.gossip.one_node import (
    INCARNATION,
    ME,
    OneNode,
    address_of,
    alive_of,
    only,
    sent,
    state_of,
)  # fmt: skip
from waterclock.cluster.gossip import (
    Conflicted,
    Failed,
    GossipConfig,
    Joined,
    Left,
    MergeRefused,
    OpenPushPull,
    State,
    Updated,
    membership,
)
from waterclock.cluster.gossip.messages import Alive, Dead, Suspect, User
from waterclock.cluster.gossip.serf import VERSIONS, encode_tags, is_understood, leave_intent
from waterclock.model.errors import BadConfig, LimitExceeded


def test_a_node_that_is_new_has_joined_and_everyone_is_told():
    me = OneNode("b1")

    (joined,) = only(me.hears(alive_of("b2", meta=encode_tags({"zone": "a"}))), Joined)

    assert joined.member.tags == {"zone": "a"}
    assert (address_of("b1"), alive_of("b2", meta=encode_tags({"zone": "a"}))) in sent(
        me.passes(200), Alive
    )


@pytest.mark.parametrize(("incarnation", "meta"), [(4, b"old"), (5, b"old"), (6, b"new")])
def test_alive_counts_only_with_a_greater_incarnation(incarnation, meta):
    me = OneNode()
    me.hears(alive_of("b1", 5, b"old"))

    effects = me.hears(alive_of("b1", incarnation, b"new"))

    assert [each.member.meta for each in only(effects, Updated)] == [b"new"] * (incarnation == 6)
    assert next(each for each in me.gossip.members() if each.name == "b1").meta == meta


@pytest.mark.parametrize(("incarnation", "state"), [(4, State.ALIVE), (5, State.SUSPECT)])
def test_suspect_counts_with_an_incarnation_that_is_not_less(incarnation, state):
    me = OneNode()
    me.hears(alive_of("b1", 5))

    me.hears(Suspect(incarnation, "b1", "b2"))

    assert me.state("b1") == state


@pytest.mark.parametrize(("incarnation", "state"), [(4, State.ALIVE), (5, State.DEAD)])
def test_dead_counts_with_an_incarnation_that_is_not_less(incarnation, state):
    me = OneNode()
    me.hears(alive_of("b1", 5))

    effects = me.hears(Dead(incarnation, "b1", "b2"))

    assert me.state("b1") == state
    assert len(only(effects, Failed)) == (state == State.DEAD)


def test_a_node_whose_process_is_gone_is_declared_failed_and_everyone_is_told_at_once():
    me = OneNode("b1", "b2")

    effects = me.declares_failed("b1")

    assert [each.member.name for each in only(effects, Failed)] == ["b1"]
    assert (address_of("b2"), Dead(1, "b1", "me")) in sent(effects, Dead)


def test_a_node_that_is_declared_failed_hears_of_it_and_refutes():
    me, other = OneNode("b1", "b2"), OneNode()

    claims = [claim for to, claim in sent(me.declares_failed("b1"), Dead) if to == address_of("b1")]
    me.hears(alive_of("b1", 2))

    assert claims == [Dead(1, "b1", "me")]
    assert me.state("b1") == State.ALIVE
    other.hears(Dead(INCARNATION, "me", "b1"))
    assert other.incarnation() == INCARNATION + 1


def test_nobody_is_declared_failed_who_is_unknown_or_gone_and_we_never_declare_ourselves():
    me = OneNode("b1")
    me.hears(Dead(1, "b1", "b1"))
    me.forget_news()

    for name in ("me", "b1", "b9"):
        assert only(me.declares_failed(name), Failed) == []

    assert me.state("b1") == State.LEFT
    assert me.state("me") == State.ALIVE
    assert me.incarnation() == INCARNATION


def test_suspect_and_dead_of_an_unknown_node_are_ignored():
    me = OneNode()

    me.hears(Suspect(1, "b1", "b2"), Dead(1, "b3", "b2"))

    assert [each.name for each in me.gossip.members()] == ["me"]


def test_dead_of_one_who_is_gone_is_ignored():
    me = OneNode("b1")
    me.hears(Dead(1, "b1", "b1"))

    assert only(me.hears(Dead(7, "b1", "b2")), Failed) == []
    assert me.state("b1") == State.LEFT


def test_a_node_that_says_itself_that_it_goes_has_left():
    me = OneNode("b1", "b2")

    effects = me.hears(Dead(1, "b1", "b1"))

    assert [each.member.name for each in only(effects, Left)] == ["b1"]
    assert me.state("b1") == State.LEFT


def test_a_suspect_that_refutes_is_alive_and_nothing_happened():
    me = OneNode("b1", "b2")
    me.hears(Suspect(1, "b1", "b2"))

    effects = me.hears(alive_of("b1", 2))

    assert me.state("b1") == State.ALIVE
    assert only(effects, Joined) + only(effects, Updated) == []


def test_a_node_that_was_dead_and_refutes_has_joined_again():
    me = OneNode("b1")
    me.hears(Dead(1, "b1", "b2"))

    assert [each.member.name for each in only(me.hears(alive_of("b1", 2)), Joined)] == ["b1"]


@pytest.mark.parametrize("accusation", [Suspect(0, "me", "b1"), Dead(0, "me", "b1")])
@pytest.mark.parametrize("ahead", [0, 41])
def test_we_refute_with_an_incarnation_above_ours_and_the_accusations(accusation, ahead):
    me = OneNode("b1")

    effects = me.hears(accusation._replace(incarnation=INCARNATION + ahead), source="b9")

    assert me.state("me") == State.ALIVE
    assert me.incarnation() == INCARNATION + ahead + 1
    assert me.gossip.score == 1
    # At once to the accuser, which may know us no more, and then to everyone.
    assert [to for to, _ in sent(effects, Alive)] == [address_of("b9")]
    assert address_of("b1") in [to for to, _ in sent(me.passes(200), Alive)]


def test_an_old_accusation_of_us_is_ignored():
    me = OneNode("b1")

    assert me.hears(Suspect(INCARNATION - 1, "me", "b1"), Dead(1, "me", "b1")) == []
    assert me.incarnation() == INCARNATION


def test_we_refute_what_an_earlier_run_of_us_said_with_the_same_incarnation():
    me = OneNode("b1")

    me.hears(Alive(INCARNATION, "me", ME, b"", VERSIONS))
    assert me.incarnation() == INCARNATION
    me.hears(Alive(INCARNATION, "me", ME, b"other", VERSIONS))
    assert me.incarnation() == INCARNATION + 1


def test_who_leaves_does_not_refute():
    me = OneNode("b1")
    me.gossip.leave(me.now_ms)
    me.passes(200)

    me.hears(Dead(INCARNATION + 5, "me", "b1"), Alive(INCARNATION + 9, "me", ME, b"", VERSIONS))

    assert me.state("me") == State.LEFT


def test_a_leave_is_told_after_its_intent_until_it_was_sent_often_enough():
    me = OneNode("b1")

    effects = me.gossip.leave(me.now_ms)

    assert [user for _, user in sent(effects, User)] == [leave_intent("me", time=INCARNATION)]
    assert sent(effects, Dead) == []
    assert not me.gossip.has_sent_all
    later = me.passes(1_500)
    assert [dead for _, dead in sent(later, Dead)] == [Dead(INCARNATION, "me", "me")] * 4
    assert me.gossip.has_sent_all


def test_the_name_of_one_who_left_is_free_and_that_of_one_who_failed_is_not():
    me = OneNode("b1", "b2")
    me.hears(Dead(1, "b1", "b1"), Dead(1, "b2", "b9"))
    moved = ("10.9.9.9", 1)

    (joined,) = only(me.hears(alive_of("b1", 1, address=moved)), Joined)
    (conflicted,) = only(me.hears(alive_of("b2", 9, address=moved)), Conflicted)

    assert joined.member.address == moved
    assert (conflicted.member.name, conflicted.address) == ("b2", moved)
    assert me.state("b2") == State.DEAD


def test_the_name_of_one_who_failed_is_free_after_a_time_if_so_configured():
    me = OneNode("b1", dead_reclaim_ms=500)
    me.hears(Dead(1, "b1", "b9"))

    assert only(me.hears(alive_of("b1", 9, address=("10.9.9.9", 1))), Joined) == []
    me.passes(501)
    assert len(only(me.hears(alive_of("b1", 9, address=("10.9.9.9", 1))), Joined)) == 1


def test_another_node_with_our_name_is_a_conflict():
    me = OneNode("b1")

    (conflicted,) = me.hears(Alive(INCARNATION + 7, "me", ("10.9.9.9", 1), b"", VERSIONS))

    assert isinstance(conflicted, Conflicted)
    assert me.incarnation() == INCARNATION


def test_one_who_came_back_with_too_low_an_incarnation_is_sent_what_it_has_to_refute():
    """memberlist#311: dead with 100 against alive with 1 would stay dead for ever."""
    me = OneNode("b1", "b2")
    me.hears(Dead(100, "b1", "b2"))
    me.passes(5_000)

    effects = me.hears(alive_of("b1", 1))

    accusation = Suspect(100, "b1", "me")
    assert sent(effects, Suspect) == [(address_of("b1"), accusation)]
    assert (address_of("b2"), accusation) in sent(me.passes(200), Suspect)
    assert me.hears(alive_of("b1", 1)) == []  # at most once an interval
    assert me.state("b1") == State.DEAD


def test_what_a_push_pull_calls_dead_is_only_suspect():
    me = OneNode("b1", "b2", "b3", "b4")

    effects = me.merges(
        state_of("b1", State.DEAD), state_of("b2", State.SUSPECT), state_of("b3", State.LEFT),
        state_of("b5", State.ALIVE), state_of("b6", State.DEAD),
    )  # fmt: skip

    assert [me.state(f"b{number}") for number in range(1, 7)] == [
        State.SUSPECT, State.SUSPECT, State.LEFT, State.ALIVE, State.ALIVE, None,
    ]  # fmt: skip
    assert [type(each) for each in effects] == [Left, Joined]


def test_a_push_pull_is_answered_with_what_was_known_before():
    me = OneNode("b1")
    remote = OpenPushPull(ME, me.gossip._state(is_join=True)).state

    answer, _ = me.gossip.push_pull_received(
        remote._replace(states=(state_of("b2", State.ALIVE),)), me.now_ms
    )

    assert [state.name for state in answer.states] == ["me", "b1"]
    assert answer.is_join
    assert me.state("b2") == State.ALIVE


def test_a_push_pull_of_nodes_that_do_not_speak_as_we_do_is_refused_as_a_whole():
    me = OneNode("b1")
    odd = state_of("b2", State.ALIVE)._replace(versions=bytes((1, 5, 2, 0, 0, 0)))

    (refused,) = me.merges(state_of("b3", State.ALIVE), odd)

    assert isinstance(refused, MergeRefused)
    assert "delegate protocol" in refused.reason
    assert me.state("b3") is None


@pytest.mark.parametrize(
    "versions",
    [(0, 5, 2, 2, 5, 4), (1, 0, 2, 2, 5, 4), (5, 1, 2, 2, 5, 4), (1, 5, 2, 0, 0, 0), (1, 5, 2)],
)
def test_a_node_that_does_not_speak_as_we_do_is_not_admitted_by_news(versions):
    me = OneNode("b1")

    me.hears(alive_of("b2", versions=bytes(versions)))

    assert me.state("b2") is None
    assert is_understood(bytes((1, 5, 2, 2, 5, 5)))


def test_no_more_nodes_are_known_than_may_be(monkeypatch):
    monkeypatch.setattr(membership, "NODES_MAX", 3)
    me = OneNode("b1", "b2")

    assert me.hears(alive_of("b3")) == []
    assert me.state("b3") is None
    assert len(only(me.hears(alive_of("b2", 2, b"new")), Updated)) == 1


def test_tags_are_told_with_a_greater_incarnation_and_have_a_limit():
    me = OneNode("b1")
    me.gossip.set_tags({"zone": "b"}, me.now_ms)

    (_, claim), *_ = sent(me.passes(200), Alive)

    assert claim == Alive(INCARNATION + 1, "me", ME, encode_tags({"zone": "b"}), VERSIONS)
    with pytest.raises(LimitExceeded, match="tags exceeds its limit of 512"):
        me.gossip.set_tags({"zone": "b" * 512}, me.now_ms)


def test_seeds_are_met_at_once_and_again_while_they_are_no_members():
    me = OneNode("b1")

    effects = me.gossip.join([address_of("b1"), address_of("b2"), ME], me.now_ms)

    assert [each.address for each in only(effects, OpenPushPull)] == [address_of("b2")]
    later = only(me.passes(40_000), OpenPushPull)
    assert address_of("b2") in [each.address for each in later if each.state.is_join]


def test_a_node_that_is_alone_tries_its_seeds_soon_and_then_ever_more_rarely():
    me = OneNode()
    me.gossip.join([address_of("b1")], me.now_ms)

    counts = [len(only(me.passes(30_000), OpenPushPull)) for _ in range(4)]

    assert counts[0] >= 4
    assert counts[3] <= 2


def test_a_failed_node_is_tried_again_after_it_was_reaped_and_one_that_left_is_not():
    me = OneNode("b1", "b2")
    me.hears(Dead(1, "b1", "b9"), Dead(1, "b2", "b2"))

    me.passes(60_000)
    assert [each.name for each in me.gossip.members()] == ["me"]
    tried = {each.address for each in only(me.passes(120_000), OpenPushPull)}

    assert tried == {address_of("b1")}


@pytest.mark.parametrize(
    "settings",
    [{"probe_interval_ms": 0}, {"probe_timeout_ms": 1_000}, {"packet_bytes_max": 500}],
)
def test_a_setting_that_cannot_be_is_refused_by_name(settings):
    with pytest.raises(BadConfig, match=f"gossip.{next(iter(settings))}"):
        GossipConfig(**settings)


def test_presets_are_memberlists():
    lan, wan, local = GossipConfig.lan(), GossipConfig.wan(), GossipConfig.local()

    assert [each.probe_interval_ms for each in (lan, wan, local)] == [1_000, 5_000, 1_000]
    assert [each.probe_timeout_ms for each in (lan, wan, local)] == [500, 3_000, 200]
    assert [each.suspicion_mult for each in (lan, wan, local)] == [4, 6, 3]


def test_what_a_dead_node_says_of_deaths_is_only_a_suspicion():
    me = OneNode("b1", "b2", "b3", "b4")
    me.hears(Dead(1, "b1", "b2"))

    me.hears(Dead(1, "b3", "b1"), Dead(1, "b4", "b2"))

    assert [me.state(name) for name in ("b1", "b3", "b4")] == [
        State.DEAD, State.SUSPECT, State.DEAD,
    ]  # fmt: skip


def test_so_is_what_a_node_says_that_was_reaped_after_it_failed():
    me = OneNode("b1", "b2", "b3")
    me.hears(Dead(1, "b1", "b2"))
    while me.state("b1") is not None:
        me.passes(1_000)
        for number in (2, 3):
            me.hears(alive_of(f"b{number}", me.now_ms))

    me.hears(Dead(me.now_ms, "b3", "b1"))

    assert me.state("b3") == State.SUSPECT


@pytest.mark.parametrize("meets", [Suspect(INCARNATION, "me", "b9"), alive_of("b3", 2)])
def test_a_node_that_meets_others_again_doubts_its_accusations(meets):
    """It was accused itself, or a node lives that it took for dead."""
    me = OneNode("b1", "b2", "b3", "b4", "b5")
    me.gossip._prober.stop()
    me.hears(Dead(1, "b3", "b4"), Suspect(1, "b1", "b4"))
    me.forget_news()
    me.hears(Dead(1, "b2", "b4"))

    me.hears(meets)
    news = me.passes(400)

    assert sent(news, Dead) == []
    assert Suspect(1, "b2", "me") in [claim for _, claim in sent(news, Suspect)]
    assert sent(me.passes(60_000), Dead) == []  # for nobody answers
