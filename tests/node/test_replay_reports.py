"""How far a reader has come may be reported while a replay is read, and after."""

import pytest

from tests.node.consuming import consuming
from tests.node.test_replays import EVERYTHING, large, read
from waterclock.model.errors import BadInput, NotFound
from waterclock.model.views import Position
from waterclock.node.replay.records import Request


@pytest.mark.parametrize("has_crashed", [False, True])
async def test_the_last_report_may_come_after_a_restart(tmp_path, has_crashed):
    async with consuming(tmp_path) as c:
        await c.hosts.topic("t", partitions=2)
        await c.publish(b"a", b"b")
        await c.publish(b"later", due_ms=c.clock.now_ms() + 1_000)
        replay = await c.replays.begin(EVERYTHING, name="r")
        await read(replay)
        replay.close()
        c.has_crashed = has_crashed
    async with consuming(tmp_path, clock=c.clock) as c:
        for _ in range(2):
            await c.replays.report("r", [(0, 2)])
        (info,) = c.replays.list()
        assert info.done == (Position(0, 3), Position(1, 0)) == info.ends
        c.has_crashed = True
    async with consuming(tmp_path, clock=c.clock) as c:
        assert (await read(await c.replays.begin(EVERYTHING, name="r"))).places == []


async def test_a_reader_is_believed_up_to_the_end_of_its_replay_and_all_or_nothing(tmp_path):
    async with consuming(tmp_path) as c:
        await c.hosts.topic("t", partitions=2)
        await large(c, 2)
        replay = await c.replays.begin(EVERYTHING, name="r")
        await read(replay, 1)
        replay.close()

        for wrong in ([(0, 1), (0, 3)], [(0, 1), (2, 0)]):
            with pytest.raises(BadInput):
                await c.replays.report("r", wrong)
        assert c.replays.list()[0].done == (Position(0, 0), Position(1, 0))
        await c.replays.report("r", [(0, 2)])
        assert c.replays.list()[0].done == (Position(0, 2), Position(1, 0))
        with pytest.raises(NotFound):
            await c.replays.report("nowhere", [(0, 2)])


async def test_what_is_done_may_be_told_when_a_replay_goes_on(tmp_path):
    async with consuming(tmp_path) as c:
        await c.hosts.topic("t")
        await large(c, 3)
        first = await c.replays.begin(EVERYTHING, name="r")
        await read(first, 2)
        second = await c.replays.begin(Request("t"), name="r", done=[(0, 2)])

        assert (await read(second)).places == [(0, 2)]
        with pytest.raises(BadInput):
            await c.replays.begin(EVERYTHING, name="new", done=[(0, 2)])


async def test_a_replay_without_a_name_begins_behind_what_is_done(tmp_path):
    async with consuming(tmp_path) as c:
        await c.hosts.topic("t", partitions=2)
        await large(c, 3)
        replay = await c.replays.begin(EVERYTHING, done=[(0, 2), (1, 0)])

        assert (await read(replay)).places == [(0, 2)]
        with pytest.raises(BadInput):
            await c.replays.begin(EVERYTHING, done=[(2, 0)])
