"""The parallel consumer of several nodes goes on when one of them is gone."""

from tests.burrow.pool_runs import until
from tests.client.doors import Door, doors_to
from tests.server.served import running_server
from waterclock.burrow import Pool, Record, WaterclockSource
from waterclock.client.client import connect
from waterclock.model.message import Message


async def test_a_pool_goes_on_at_another_node(tmp_path):
    async with (
        running_server(tmp_path) as served,
        doors_to(served.server.grpc_port) as doors,
        connect(served.server.addresses.grpc) as client,
    ):
        messages = [Message(b"%d" % number, key=b"%d" % (number % 9)) for number in range(300)]
        await client.publish_many("orders", messages)
        done: set[bytes | None] = set()
        shut: list[Door] = []

        async def process(record: Record) -> None:
            done.add(record.value)
            if len(done) == 100 and not shut:
                at = source._client._connection.address  # type: ignore[union-attr]
                shut.append(next(door for door in doors if door.address == at))
                shut[0].shut()

        addresses = ",".join(door.address for door in doors)
        source = WaterclockSource("orders", group="billing", address=addresses, prefetch=50)
        async with Pool(source, process, workers=5, commit_every=1):
            await until(lambda: len(done) == 300)
        (group,) = await client.groups.list("orders")
        assert sum(place.lag for place in group.partitions) == 0
