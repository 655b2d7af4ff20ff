"""A consumer as a process, for whom some messages never end; it writes down all others."""

import asyncio
import json
import sys
from pathlib import Path

from tests.burrow.chaos.journal import JournalWriter, What
from waterclock.burrow.core.records import Record
from waterclock.burrow.kafka.source import KafkaSource
from waterclock.burrow.runtime.pool import Pool

SESSION = {"session.timeout.ms": 2_000, "heartbeat.interval.ms": 300}


def main() -> None:
    """Consume until told to end."""
    said = json.loads(sys.argv[1])
    stuck = {str(number).encode() for number in said["stuck"]}
    journal = JournalWriter(Path(said["journal"]))

    async def process(record: Record) -> None:
        if record.value in stuck:
            await asyncio.Event().wait()
        journal.note(What.FINISHED, (record.partition, record.offset), int(record.value or b""))

    async def run() -> None:
        settings = {**said["settings"], "group.id": said["group"], **SESSION}
        source = KafkaSource(settings, [said["topic"]])
        await Pool(source, process, workers=50, order="key").run()

    asyncio.run(run())


if __name__ == "__main__":
    main()
