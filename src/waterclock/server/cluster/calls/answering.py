"""Calls of gRPC that other nodes ask for their clients: answered here, over the link.

The node that was asked first has checked who asks and what they may; of what has a name, by the
records as it had them, so this one looks again, and what it lists of all topics is what they may
read. It looks whether it is the right one to answer, and
says so if it is not.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextvars import copy_context
from typing import Any, NamedTuple

from google.protobuf.message import Message

from waterclock.cluster.peer_link.channels import Channel
from waterclock.cluster.remote_calls import (
    END,
    RIGHTS,
    STOP,
    BadCall,
    CallHead,
    Failure,
    end,
    message,
)
from waterclock.model.errors import BadInput, Stopping, WaterclockError
from waterclock.runtime.call_channel import CallChannel
from waterclock.server.access import CALLER
from waterclock.server.calls import StreamingCall, parser_of
from waterclock.server.cluster.calls.forwarded_request import principal_of
from waterclock.server.statuses import log_unforeseen, ours

Check = Callable[[str, Any, tuple[int, ...]], None]
"""Raises NotLeader unless this node is to answer a request, by method, for these partitions."""


Permit = Callable[[str, Any, bytes], None]
"""Raises Forbidden unless who asks may ask that, by method, with these rights."""
NodesMethod = Callable[[bytes], Awaitable[bytes]]


class RemoteMethod(NamedTuple):
    """A method as other nodes call it."""

    work: Callable[..., Awaitable[Any]]
    """Takes a request; or a request, or None, and a stream."""
    request: type[Message]
    is_stream: bool = False
    reads: bool = False
    """It is given no request, and reads them all from its stream."""


class RemoteStream:
    """What a method sees of a call that came over a link, in the shape of `calls.Stream`."""

    def __init__(self, call: CallChannel, parse: Callable[[bytes], Message], first: Any) -> None:  # noqa: ANN401 - a message
        self._call = call
        self._parse = parse
        self._first = first
        self._served_by: StreamingCall | None = None
        self._is_stopping = False

    def serve_by(self, call: StreamingCall) -> None:
        """Have a call end when the node in front stops; without one, reading ends it."""
        self._served_by = call

    async def read(self) -> Any:  # noqa: ANN401 - of the type the method takes
        """Return the next request, or None if there are no more."""
        if self._first is not None:
            first, self._first = self._first, None
            return first
        while (item := await self._call.take()) is not None and item.kind == STOP:
            self._stop()
        return None if item is None or item.kind == END else self._parse(item.body)

    def _stop(self) -> None:
        if self._served_by is None:
            raise Stopping("the node that was asked is stopping: try again, or elsewhere")
        if self._is_stopping:
            self._served_by.end()
        else:
            self._is_stopping = True
            self._served_by.stop()

    async def write(self, data: bytes) -> None:
        """Answer; returns when there is room for more."""
        await self._call.answer(message(data))

    def refusal_of(self, request: Message) -> WaterclockError | None:
        """The node that was asked first has looked."""
        return None


class CallAnswering:
    """Answers calls by a table of methods; `check` looks first whether this is the right node, and
    `check_still` whether it was while it worked."""

    def __init__(
        self,
        methods: Mapping[str, RemoteMethod],
        check: Check,
        check_still: Check,
        permit: Permit,
        tasks: asyncio.TaskGroup,
        *,
        of_nodes: Mapping[str, NodesMethod],
    ) -> None:
        """`of_nodes` are methods that no client has."""
        self._methods = methods
        self._of_nodes = of_nodes
        self._check = check
        self._check_still = check_still
        self._permit = permit
        self._tasks = tasks
        self._parsers = {name: parser_of(each.request) for name, each in methods.items()}

    def requested(self, channel: Channel, body: bytes, *, is_last: bool) -> None:
        """Take a call; what is missing of it comes later."""
        try:
            head, at = CallHead.decode(body)
        except BadCall as error:
            channel.cancel(str(error))
            return
        if head.method not in self._methods and head.method not in self._of_nodes:
            channel.cancel(f"{head.method} is unknown here")
            return
        call = CallChannel()
        call.channel = channel
        channel.listener = call
        # What is logged for this call bears its id; what the link logs later must not.
        work = self._tasks.create_task(self._answer(call, head), context=copy_context())
        call.on_failed = work
        call.hear(body[at:], is_last=is_last)

    async def _answer(self, call: CallChannel, head: CallHead) -> None:
        try:
            last = await self._work(call, head)
        except WaterclockError as error:
            last = end(Failure.of(error))
        except Exception as error:
            found = ours(error)
            if found is not None:
                last = end(Failure.of(found))
            else:
                error_id = log_unforeseen(head.method, error)
                text = f"something unforeseen happened, logged as error {error_id}"
                last = end(Failure(text, facts={"error_id": error_id}))
        call.on_failed = None
        await call.answer(last, is_last=True)

    async def _work(self, call: CallChannel, head: CallHead) -> bytes:
        """Do what is asked; return what is still to be said."""
        texts, first = b"", await call.take()
        if first is not None and first.kind == RIGHTS:
            texts, first = first.body, await call.take()
        if first is None or first.kind == END:
            raise BadInput("the call has no request")
        if head.method in self._of_nodes:
            return message(await self._of_nodes[head.method](first.body)) + end()
        method, parse = self._methods[head.method], self._parsers[head.method]
        request = parse(first.body)
        self._check(head.method, request, head.partitions)
        self._permit(head.method, request, texts)
        CALLER.set(principal_of(texts))
        if not method.is_stream:
            response = await method.work(request)
            self._check_still(head.method, request, head.partitions)
            return message(response.SerializeToString()) + end()
        stream = RemoteStream(call, parse, request if method.reads else None)
        await method.work(None if method.reads else request, stream)
        return end()
