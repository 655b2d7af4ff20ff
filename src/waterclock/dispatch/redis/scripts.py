"""The Lua scripts: what must happen in Redis in one step, or be refused to a leader that is
replaced.

Each is a file in `lua/`, which says what it takes and answers. Those that change anything of the
leader's begin with `fenced.lua`: they check the caller's epoch and refuse a lower one (`Stale`).
Scripts are called by their digest, and sent whole only to a server that does not know them.
"""

from collections.abc import Sequence
from hashlib import sha1
from importlib.resources import files

from waterclock.dispatch.redis.client import RedisClient
from waterclock.dispatch.redis.link import RedisRefused, Reply, Word
from waterclock.model.errors import WaterclockError


class Stale(WaterclockError):
    """Another leads under a higher epoch: Redis did not run the script."""


class Script:
    """A script, callable on any server."""

    def __init__(self, name: str, *, is_fenced: bool = True) -> None:
        folder = files("waterclock.dispatch.redis").joinpath("lua")
        names = [*(["fenced"] if is_fenced else []), name]
        self.name = name
        self.text = "\n".join(folder.joinpath(f"{each}.lua").read_text() for each in names)
        self.digest = sha1(self.text.encode(), usedforsecurity=False).hexdigest()

    def __repr__(self) -> str:
        return f"<Script {self.name}>"

    async def run(
        self,
        redis: RedisClient,
        keys: Sequence[str],
        *args: Word,
        then: Sequence[Sequence[Word]] = (),
    ) -> list[Reply]:
        """Run it where its keys are, and further commands on the same connection right behind it.
        Return all answers."""
        rest = (len(keys), *keys, *args)
        try:
            return await redis.run(keys[0], ("EVALSHA", self.digest, *rest), *then)
        except RedisRefused as refused:
            if refused.kind == "STALE":
                raise Stale(str(refused)) from None
            if refused.kind != "NOSCRIPT":
                raise
        try:
            return await redis.run(keys[0], ("EVAL", self.text, *rest), *then)
        except RedisRefused as refused:
            if refused.kind == "STALE":
                raise Stale(str(refused)) from None
            raise

    async def answer(self, redis: RedisClient, keys: Sequence[str], *args: Word) -> Reply:
        """Run it and return what it answers."""
        return (await self.run(redis, keys, *args))[0]


LEASE_ACQUIRE = Script("lease_acquire", is_fenced=False)
LEASE_RENEW = Script("lease_renew", is_fenced=False)
LEASE_RELEASE = Script("lease_release", is_fenced=False)
RAISE_FENCE = Script("raise_fence")
WRITE = Script("write")
PUBLISH_MARKER = Script("publish_marker")
STREAM_READ = Script("stream_read")
STREAM_CLAIM = Script("stream_claim")
STREAM_ACK = Script("stream_ack")
STREAM_DEAD_LETTER = Script("stream_dead_letter")
BATCHES_STORE = Script("batches_store")
BATCHES_REMOVE = Script("batches_remove")
BATCHES_DEAD_LETTER = Script("batches_dead_letter")
