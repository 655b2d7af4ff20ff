"""The records of rights: written by who leads, taken up by all, and never by what is broken."""

import asyncio
from collections.abc import Coroutine
from typing import TypeVar

import pytest

from tests.node.record_logs import RecordReplica, replicas, share
from waterclock.model.errors import BadInput, NotLeader
from waterclock.node.rights import ENDED_MS, RightsRecords
from waterclock.security.principals import PrincipalRecord
from waterclock.security.shared_rights import UNKNOWN, Change, Standing

ADA, BOB = PrincipalRecord(1, {"read": ["a"]}), PrincipalRecord(2, {"admin": ["*"]})

T = TypeVar("T")


def rights_of(replica: RecordReplica) -> RightsRecords:
    return RightsRecords(replica.metadata, replica._clock)


async def committed(made: list[RecordReplica], work: Coroutine[None, None, T]) -> T:
    """Do something, while all that is written comes to be committed."""
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(work)
        while not task.done():
            await asyncio.sleep(0)
            share(made)
    return task.result()


async def test_all_nodes_have_what_the_leader_made_of_the_changes():
    with replicas() as made:
        leader, follower = map(rights_of, made)
        assert (leader.is_to_begin(), follower.is_to_begin()) == (True, False)
        await committed(made, leader.begin("r", {"ada": ADA, "bob": BOB}))
        removal = Change("ada", Standing(ADA), Standing(ended_ms=5))
        await committed(made, leader.share([removal], keeps_admin=True))
        answer = await committed(made, leader.share([removal], keeps_admin=True))

        assert answer.written == {}
        records = follower.committed()
        assert records is not None
        assert records == leader.committed()
        assert (records.identity, records.revision) == ("r", 2)
        assert records.standings == {"ada": Standing(ended_ms=5), "bob": Standing(BOB)}
        assert not leader.is_to_begin()
        with pytest.raises(NotLeader):
            await follower.share([removal], keeps_admin=True)


async def test_a_broken_record_is_passed_over_and_a_broken_change_is_refused():
    with replicas() as made:
        leader, follower = map(rights_of, made)
        await committed(made, leader.begin("r", {"ada": ADA, "bob": BOB}))
        for broken in (b"{", b'{"principal":{"made_ms":1,"rights":{"read":[""]}}}', b'{"v":2}'):
            await committed(made, made[0].metadata.put("rights/ada", broken))
            await committed(made, made[0].metadata.put("rights", b"["))

            records = follower.committed()
            assert records is not None
            assert (records.standings, records.unclear) == ({"bob": Standing(BOB)}, {"ada"})
        await committed(made, made[0].metadata.put("rights", b'{"identity":"r","revision":1}'))
        for wrong in (Standing(PrincipalRecord(3)), Standing(ended_ms=3)):
            with pytest.raises(BadInput):
                await leader.share([Change("..", UNKNOWN, wrong)], keeps_admin=True)

        removal = Change("ada", Standing(ADA), Standing(ended_ms=5))
        await committed(made, leader.share([removal], keeps_admin=True))
        records = follower.committed()
        assert records is not None
        assert records.standings["ada"] == Standing(ended_ms=5)


async def test_who_is_ended_is_forgotten_after_a_month_and_revisions_never_go_back():
    with replicas() as made:
        leader, _ = map(rights_of, made)
        now_ms = made[0]._clock.now_ms()
        await committed(made, leader.begin("r", {"ada": ADA}))
        changes = [
            Change("old", UNKNOWN, Standing(ADA)),
            Change("new", UNKNOWN, Standing(ADA)),
        ]
        await committed(made, leader.share(changes, keeps_admin=True))
        ends = [
            Change("old", Standing(ADA), Standing(ended_ms=now_ms - ENDED_MS - 1)),
            Change("new", Standing(ADA), Standing(ended_ms=now_ms - ENDED_MS)),
        ]
        await committed(made, leader.share(ends, keeps_admin=True))
        await committed(made, leader.drop_old())
        await committed(made, leader.overtake(40))
        await committed(made, leader.overtake(7))

        records = leader.committed()
        assert records is not None
        assert [*records.standings] == ["ada", "new"]
        assert records.revision == 40
