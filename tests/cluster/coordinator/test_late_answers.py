"""A real etcd whose answers come late: what was asked has happened, and who asked does not know."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import NamedTuple

import pytest

from tests.cluster.coordinator.etcd_servers import EtcdMember
from tests.cluster.coordinator.worlds import LateLink
from waterclock.cluster.coordinator.errors import CoordinatorUnavailable
from waterclock.cluster.coordinator.requests import (
    KeyValue,
    Put,
    Txn,
    Unchanged,
    one_key,
)
from waterclock.server.cluster.etcd.coordinator import EtcdCoordinator
from waterclock.server.cluster.etcd.members import EtcdSettings

pytestmark = pytest.mark.etcd

PATIENT_S, IMPATIENT_S = 30.0, 1.0
TOO_LATE_S = 60.0
LATE_S = 0.4
KEY = one_key(b"late")
LEASE_S = 6


class Linked(NamedTuple):
    """A client, and the ways it has to the one member there is."""

    coordinator: EtcdCoordinator
    links: list[LateLink]

    @property
    def link(self) -> LateLink:
        """The one that is asked first."""
        return next(it for it in self.links if it.endpoint == self.coordinator.endpoint)

    def become_impatient(self) -> None:
        """Let answers be too late from now on; what was asked until then had its time."""
        members = self.coordinator._members
        members._settings = replace(members._settings, attempt_s=IMPATIENT_S)


@asynccontextmanager
async def linked(member: EtcdMember, *, links: int = 1) -> AsyncIterator[Linked]:
    """Have a client whose connection stands."""
    async with AsyncExitStack() as stack:
        ways = [await stack.enter_async_context(LateLink(member.port).open()) for _ in range(links)]
        settings = EtcdSettings(endpoints=tuple(way.endpoint for way in ways), attempt_s=PATIENT_S)
        coordinator = EtcdCoordinator(settings)
        stack.push_async_callback(coordinator.close)
        await coordinator.read(KEY)
        yield Linked(coordinator, ways)


async def item(coordinator: EtcdCoordinator) -> KeyValue:
    (found,) = (await coordinator.read(KEY)).items
    return found


async def test_a_lease_is_kept_by_answers_that_are_late_by_less_than_it(member):
    async with linked(member) as (near, _), linked(member) as (late, (link,)):
        lease, ttl_s = await near.grant(LEASE_S)
        await near.write(Txn((), (Put(KEY.start, b"kept", lease),)))
        link.late_s = LATE_S
        for _ in range(int(ttl_s / LATE_S) + 2):  # longer than it would last by itself
            assert await late.keep_alive(lease) == (lease, ttl_s)

        assert (await item(near)).value == b"kept"
        await near.revoke(lease)


async def test_a_swap_whose_answer_is_late_is_done_once_and_says_so(member):
    async with linked(member) as (near, _), linked(member, links=2) as late:
        before = await near.write(Txn((), (Put(KEY.start, b"1"),)))
        was = await item(near)
        late.link.late_s = LATE_S
        swap = Txn((Unchanged(KEY.start, was.mod_revision),), (Put(KEY.start, b"2"),))
        answer = await late.coordinator.write(swap)

        assert (answer.succeeded, answer.revision) == (True, before.revision + 1)
        assert (await item(near)).version == was.version + 1


async def test_a_swap_whose_answer_is_too_late_is_not_sent_again_to_another_member(member):
    async with linked(member) as (near, _), linked(member, links=2) as late:
        await near.write(Txn((), (Put(KEY.start, b"1"),)))
        was = await item(near)
        late.link.late_s = TOO_LATE_S
        late.become_impatient()
        swap = Txn((Unchanged(KEY.start, was.mod_revision),), (Put(KEY.start, b"2"),))
        # The other way is quick: sent again, it would say that somebody else was faster.
        with pytest.raises(CoordinatorUnavailable):
            await late.coordinator.write(swap)

        while (now := await item(near)).version == was.version:
            pass  # the question was sent, and may be under way
        assert (now.value, now.version) == (b"2", was.version + 1)
        assert not (await near.write(swap)).succeeded


async def test_what_is_answered_later_than_its_limit_ends_with_an_error(member):
    async with linked(member) as impatient:
        late = impatient.coordinator
        lease, _ = await late.grant(60)
        impatient.link.late_s = TOO_LATE_S
        impatient.become_impatient()
        for question in (
            late.read(KEY),
            late.write(Txn((), (Put(KEY.start, b""),))),
            late.grant(60),
            late.keep_alive(lease),
            late.revoke(lease),
        ):
            with pytest.raises(CoordinatorUnavailable):
                await question
