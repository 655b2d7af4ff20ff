"""What a seed decides before anything happens: the messages, the settings, the kind of trouble."""

from dataclasses import dataclass
from random import Random

from tests.burrow.fake_group import Message
from waterclock.burrow.core.config import EngineConfig


@dataclass
class Story:
    """What a seed decides before anything happens."""

    rng: Random
    config: EngineConfig
    logs: list[dict[int, Message]]
    workers: int
    batch_size: int
    grace_ms: int
    is_eager: bool
    is_gentle: bool
    """No faults, only members that come and go cleanly: then nothing may be done twice."""
    steps: int

    @classmethod
    def of(cls, seed: int) -> "Story":
        rng = Random(seed)
        config = EngineConfig(
            order=rng.choice(["none", "key", "key", "partition"]),
            queue_max=rng.choice([3, 10, 50]),
            queue_bytes_max=(1, 300, 1 << 20)[seed % 3],
            prefetch_max=rng.choice([4, 20, 100]),
            full_ms_max=rng.choice([20, 100]),
            retry_delay_ms=10,
            retry_delay_ms_max=rng.choice([50, 200, 2_000]),
            max_retries=rng.choice([3, 5, None]),
            on_failure=rng.choice(["leave", "park", "dlq"]),
            errors_max=10**6,
            commit_ms=rng.choice([20, 200]),
            commit_count=rng.choice([1, 5, 50]),
            commit_retry_ms=20,
            map_units_max=rng.choice([4_095, 4_095, 4_095, 24, 0]),
            map_text=rng.choice(["base32768", "base64"]),
        )
        is_gentle = rng.random() < 0.25
        # What is given up for ever fills a small map for ever, and halts the pool: another test.
        is_small = config.map_units_max == 24 and config.on_failure != "dlq"
        poison = 0 if is_small else 0.02
        return cls(
            rng=rng,
            config=config,
            logs=[_log(rng, poison=poison) for _ in range(rng.randint(1, 3))],
            workers=rng.randint(1, 8),
            batch_size=rng.choice([1, 1, 1, 3]),
            grace_ms=10**9 if is_gentle else rng.choice([0, 50, 300]),
            is_eager=rng.random() < 0.5,
            is_gentle=is_gentle,
            steps=rng.randint(20, 120),
        )


def _log(rng: Random, *, poison: float) -> dict[int, Message]:
    keys = [None, *(b"%d" % key for key in range(rng.choice([1, 3, 8])))]
    holes, flaky, slow = rng.choice([0, 0, 0.3]), rng.choice([0, 0.2]), rng.choice([0, 0.05])
    offset, log = rng.choice([0, 1_000]), {}
    for _ in range(rng.randint(0, 60)):
        offset += 1 + (rng.randint(1, 5) if rng.random() < holes else 0)
        log[offset] = Message(
            key=rng.choice(keys),
            failures=rng.randint(1, 3) if rng.random() < flaky else 0,
            is_poison=rng.random() < poison,
            work_ms=rng.randint(100, 600) if rng.random() < slow else rng.randint(0, 15),
        )
    return log
