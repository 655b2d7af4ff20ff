"""A pool as a decorator, for programs that are a function and where it reads from.

    @consumer(KafkaSource(settings, ["orders"]), workers=50)
    async def bill(record: Record) -> None: ...

    asyncio.run(bill.run())

The function stays one: it can be called and tested without a pool.
"""

from collections.abc import Callable
from typing import Generic, ParamSpec, TypedDict, TypeVar, Unpack, cast

from waterclock.burrow.core.config import OnFailure, Order
from waterclock.burrow.runtime.dead_letters import DeadLetters
from waterclock.burrow.runtime.pool import Function, Pool
from waterclock.burrow.runtime.source import Source

P = ParamSpec("P")
R = TypeVar("R")


class Options(TypedDict, total=False):
    """What a `Pool` can be told."""

    workers: int
    order: Order
    batch_size: int
    timeout_s: float | None
    max_retries: int | None
    retry_delay_s: float
    retry_delay_s_max: float
    permanent: tuple[type[BaseException], ...]
    on_failure: OnFailure
    dead_letters: DeadLetters | None
    errors_max: int
    commit_every_s: float
    commit_every: int
    queue_max: int | None
    queue_bytes_max: int
    grace_s: float
    scale: tuple[int, int] | None
    handle_signals: bool


class Consumer(Generic[P, R]):
    """A function with a pool."""

    def __init__(self, source: Source, function: Callable[P, R], options: Options) -> None:
        self.function = function
        self._source = source
        self._options = options
        self.__doc__ = function.__doc__

    def __repr__(self) -> str:
        return f"<Consumer {getattr(self.function, '__name__', self.function)}>"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function itself."""
        return self.function(*args, **kwargs)

    def pool(self) -> Pool:
        return Pool(self._source, cast(Function, self.function), **self._options)

    async def run(self) -> None:
        """Work until a signal ends it."""
        await self.pool().run()


def consumer(
    source: Source, **options: Unpack[Options]
) -> Callable[[Callable[P, R]], Consumer[P, R]]:
    """Give a function a source; options are those of `Pool`."""

    def decorate(function: Callable[P, R]) -> Consumer[P, R]:
        return Consumer(source, function, options)

    return decorate
