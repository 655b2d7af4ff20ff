"""What a replay bounded by times has when somebody sets the clock back."""

from tests.node.consuming import consuming
from tests.node.test_replays import large, read
from waterclock.node.replay.records import Request, TimeRange


async def test_what_was_appended_since_the_clock_was_set_back_is_not_missed(tmp_path):
    async with consuming(tmp_path) as c:
        await c.hosts.topic("t")
        begun_ms = c.clock.now_ms()
        for value in (b"a", b"b", b"c"):
            await c.publish(value)
            c.clock.advance(1_000)
        c.clock.step(-3_000)
        c.clock.advance(500)
        await c.publish(b"d")
        c.clock.advance(500)

        async def within(start_ms: int, end_ms: int, *, by_due: bool = False) -> list[bytes]:
            times = TimeRange(begun_ms + start_ms, begun_ms + end_ms, by_due)
            replay = await c.replays.begin(Request("t", times=times))
            return (await read(replay)).values

        # The log's time is that of c. What was appended at it, or since, cannot be told apart.
        assert await within(0, 1_000) == [b"a", b"c", b"d"]
        assert await within(0, 1_000, by_due=True) == [b"a", b"c", b"d"]
        assert await within(0, 2_000) == [b"a", b"b", b"c", b"d"]
        assert await within(1_500, 1_900) == [b"c", b"d"]
        c.clock.advance(5_000)
        assert await within(0, 2_000) == [b"a", b"b"], "appended, as far as anybody knows, later"
        assert await within(0, 2_001) == [b"a", b"b", b"c", b"d"]


async def test_a_stretch_that_skips_is_taken_up_on_either_side(tmp_path):
    async with consuming(tmp_path) as c:
        await c.hosts.topic("t")
        begun_ms = c.clock.now_ms()
        for _ in range(2):
            await large(c, 2)
            c.clock.advance(1_000)
        await large(c, 2)
        c.clock.step(-10_000)
        wanted = Request("t", times=TimeRange(0, begun_ms + 1))
        first = await c.replays.begin(wanted, name="r")
        assert (await read(first)).places == [(0, 0), (0, 1), (0, 4), (0, 5)]
        for done, left in ((1, [1, 4, 5]), (2, [4, 5]), (5, [5]), (6, [])):
            await c.replays.report("r", [(0, done)])
            found = await read(await c.replays.begin(wanted, name="r"))
            assert found.places == [(0, offset) for offset in left]
