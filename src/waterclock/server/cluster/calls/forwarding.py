"""Calls of gRPC at whichever node they reach: answered here, or by the nodes that are to.

A call is asked again, for a while, if the node that was asked does not lead any more, or there is
no link to it. If the link broke on the way, nobody knows whether it was done: then it is asked
again only if that does no harm, and ends with `Fenced` else. A client that goes, or whose deadline
passes, ends the call in both nodes. When this node stops, it tells those that answer streams for
its clients: they end them as they would their own.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final

from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from waterclock.model.errors import Fenced, NotLeader, Stopping, Unavailable, Unreachable
from waterclock.node.task_groups import task_group
from waterclock.server.access import CALLER, Demand
from waterclock.server.calls import Calls, Stream
from waterclock.server.cluster.calls.answering import RemoteMethod
from waterclock.server.cluster.calls.forwarded_request import principal_of, texts_of
from waterclock.server.cluster.calls.merging import MERGES, Answer
from waterclock.server.cluster.calls.place import Place
from waterclock.server.cluster.calls.remote_calls import RemoteCall, RemoteCalls
from waterclock.server.cluster.calls.router import Read, Router, Where, is_repeatable
from waterclock.server.cluster.calls.whole_answer import Lost
from waterclock.server.grpc.guard import TopicOf, named_demand
from waterclock.server.grpc.needs import METHODS
from waterclock.server.grpc.server import STREAMS, Service, snake_case

ASK_S: Final = 10.0
"""How long a node is looked for that answers: longer than it takes to lead in another's stead."""
PAUSE_S: Final = 0.02
PAUSE_S_MAX: Final = 0.4

Work = Callable[..., Awaitable[Any]]


class Trying:
    """The time in which a call is asked again."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._end = self._loop.time() + ASK_S
        self._pause_s = PAUSE_S

    async def pause(self, error: Exception) -> None:
        """Wait a little; raises the error if there is no time left."""
        if self._loop.time() + self._pause_s >= self._end:
            raise error
        await asyncio.sleep(self._pause_s)
        self._pause_s = min(self._pause_s * 2, PAUSE_S_MAX)


class Forwarding:
    """Has calls answered where they are to be. Set `calls` before the first stream comes."""

    calls: Calls

    def __init__(
        self, router: Router, remote: RemoteCalls, topics_of: Mapping[str, TopicOf]
    ) -> None:
        """`topics_of` finds the topic of what a request names, by what that is."""
        self._topics_of = topics_of
        self._router = router
        self._remote = remote
        self.retried = 0

    def __repr__(self) -> str:
        return f"<Forwarding of {self._router.me}>"

    def check(self, method: str, request: Message, partitions: tuple[int, ...]) -> None:
        """Raise NotLeader unless this node is to answer a request of another one."""
        self._router.check(METHODS[method].place, reader_of(request), partitions)

    def check_still(self, method: str, request: Message, partitions: tuple[int, ...]) -> None:
        """Raise if an answer to another node may lack something by now."""
        self._router.check_still(METHODS[method].place, reader_of(request), partitions)

    def permit(self, method: str, request: Message, texts: bytes) -> None:
        """Raise Forbidden if a client of another node, with these rights, may not use what it
        names, or make it where it says: the records of that node may be older than ours."""
        row = METHODS[method]
        if not texts or row.named is None:
            return
        what, field = row.named
        read, kind = reader_of(request), row.needs.kind
        name = str(read(field))
        topic = self._topics_of[what](name)
        if kind is None:
            return
        if topic is not None:
            named_demand(kind, what, name, topic).check(principal_of(texts))
        elif row.needs.topic is not None:
            # That node may have let it in for the topic of one that is not there any more.
            Demand(kind, read(row.needs.topic) or None).check(principal_of(texts))

    # One request, one answer

    def unary(self, name: str, work: Work, response: type[Message]) -> Work:
        """Return what answers a method with one answer, here or elsewhere."""
        place = METHODS[name].place
        if place.kind == "here":
            return work
        unary = self._unary

        async def routed(request: Message) -> Message:
            return await unary(name, place, request, work, response)

        return routed

    async def _unary(
        self, name: str, place: Place, request: Message, work: Work, response: type[Message]
    ) -> Message:
        read, trying = reader_of(request), Trying()
        asking = _Asking(self, name, place, request, work, response)
        hint = ""
        while True:
            node: str | None = hint
            try:
                where = self._router.find(place, read)
                node = hint or where.only
                hint = ""
                if node is None:
                    return await asking.gather(where, read, trying)
                return await asking.leg(node, ())
            except NotLeader as error:
                if error.leader and error.leader != node:
                    hint = error.leader
                await trying.pause(error)
            except Lost as error:
                if not is_repeatable(place, read):
                    raise _fenced(error) from error
                await trying.pause(error)
            except Unreachable as error:
                await trying.pause(error)
            except Stopping as error:
                if node in (None, self._router.me) or not self._has_moved(place, read, node):
                    raise
                await trying.pause(error)
            self.retried += 1

    def _has_moved(self, place: Place, read: Read, node: str | None) -> bool:
        try:
            return self._router.find(place, read).only != node
        except NotLeader:
            return True

    # Streams

    def stream(self, name: str, work: Work, *, reads: bool) -> Work:
        """Return what serves a method that writes as it goes, here or elsewhere."""
        place = METHODS[name].place
        if place.kind == "here":
            return work
        serve = self._stream

        async def routed(request: Message | None, stream: Stream) -> None:
            first = await stream.read() if reads else request
            if first is None:  # the method says what is wrong
                await work(None, stream)
                return
            await serve(name, place, first, stream, work, reads=reads)

        return routed

    async def _stream(
        self, name: str, place: Place, first: Message, stream: Stream, work: Work, *, reads: bool
    ) -> None:
        read, trying, hint = reader_of(first), Trying(), ""
        while True:
            node = hint
            try:
                node = hint or self._router.find(place, read).only or ""
                assert node, f"{name} has several places"
                hint = ""
                if node == self._router.me:
                    if reads:
                        await work(None, ReadStream(first, stream))
                    else:
                        await work(first, stream)
                    return
                async with self._remote.begun(
                    node, name, first.SerializeToString(), texts=_texts(name), is_last=not reads
                ) as call:
                    answer = await call.message()
                    if answer is not None:
                        await self._pass_on(call, answer, stream, reads=reads)
                    return
            except NotLeader as error:
                if error.leader and error.leader != node:
                    hint = error.leader
                await trying.pause(error)
            except Unreachable as error:
                await trying.pause(error)
            self.retried += 1

    async def _pass_on(
        self, call: RemoteCall, answer: bytes, stream: Stream, *, reads: bool
    ) -> None:
        """Pass on what client and node say, once the node has begun to answer."""
        passed, streams = PassedStream(call), self.calls.streaming_calls
        streams.add(passed)
        if self.calls.is_stopping:
            passed.stop()
        try:
            async with task_group() as tasks:
                saying = tasks.create_task(_say(call, stream)) if reads else None
                found: bytes | None = answer
                while found is not None:
                    await stream.write(found)
                    found = await _next(call)
                if saying is not None:
                    saying.cancel()
        finally:
            streams.discard(passed)


class PassedStream:
    """A stream that another node serves; it hears there that this one stops."""

    def __init__(self, call: RemoteCall) -> None:
        self.stop = call.stop
        self.end = call.stop


class ReadStream:
    """A stream whose first request was read already."""

    def __init__(self, first: Message, stream: Stream) -> None:
        self._first: Message | None = first
        self._stream = stream
        self.write = stream.write
        self.refusal_of = stream.refusal_of
        self.serve_by = stream.serve_by

    async def read(self) -> Any:  # noqa: ANN401 - of the type the method takes
        if self._first is None:
            return await self._stream.read()
        first, self._first = self._first, None
        return first


class _Asking:
    """One call, asked of one node after the other, or of several."""

    def __init__(
        self,
        forwarding: Forwarding,
        name: str,
        place: Place,
        request: Message,
        work: Work,
        response: type[Message],
    ) -> None:
        self._permit = forwarding.permit
        self._router = forwarding._router
        self._remote = forwarding._remote
        self._name = name
        self._place = place
        self._request = request
        self._work = work
        self._response = response

    async def leg(self, node: str, partitions: tuple[int, ...]) -> Message:
        """Return what one node answers."""
        if node == self._router.me:
            if partitions:
                self._router.check(self._place, reader_of(self._request), partitions)
            self._permit(self._name, self._request, _texts(self._name))  # it may have come to lead
            answer: Message = await self._work(self._request)
            self._router.check_still(self._place, reader_of(self._request), partitions)
            return answer
        data = self._request.SerializeToString()
        found = await self._remote.unary(
            node, self._name, data, partitions=partitions, texts=_texts(self._name)
        )
        return self._response.FromString(found)

    async def gather(self, where: Where, read: Read, trying: Trying) -> Message:
        """Return what several nodes answer, put together. Of partitions that have moved, those who
        lead them by now are asked; all others have answered by then, and are not asked again."""
        answers: list[Answer] = []
        while True:
            legs = list(where.nodes.items())
            results = await asyncio.gather(
                *(self.leg(*leg) for leg in legs), return_exceptions=True
            )
            moved: list[int] = []
            problem: Exception | None = None
            for (node, partitions), result in zip(legs, results, strict=True):
                if not isinstance(result, BaseException):
                    answers.append(Answer(node, partitions, result))
                    continue
                if isinstance(result, Lost) and not is_repeatable(self._place, read):
                    raise _fenced(result) from result
                if not partitions or not isinstance(result, NotLeader | Unreachable | Lost):
                    raise result
                moved += partitions
                problem = result
            if problem is None:
                merged: Message = MERGES[self._name](self._request, answers, self._router.me)
                return merged
            await trying.pause(problem)
            where = await self._regrouped(read, moved, trying)

    async def _regrouped(self, read: Read, moved: list[int], trying: Trying) -> Where:
        while True:
            try:
                found = self._router.regrouped(self._place, read, moved)
            except NotLeader as error:
                await trying.pause(error)
            else:
                only = found.only
                return found if only is None else Where(found.what, {only: tuple(moved)})


def reader_of(request: Any) -> Read:  # noqa: ANN401 - any message
    """Return what reads fields of a request, by their paths."""

    def read(path: str) -> Any:  # noqa: ANN401 - any field
        *parts, name = path.split(".")
        holder = request
        for part in parts:
            holder = getattr(holder, part)
        if holder.DESCRIPTOR.fields_by_name[name].has_presence and not holder.HasField(name):
            return None
        return getattr(holder, name)

    return read


def remote_methods(services: Iterable[Service]) -> dict[str, RemoteMethod]:
    """Return the methods that other nodes may call: those that are not each node's own."""
    found = {}
    for service in services:
        for method in service.descriptor.methods:
            name = f"{service.descriptor.name}/{method.name}"
            if METHODS[name].place.kind != "here":
                found[name] = RemoteMethod(
                    getattr(service.servicer, snake_case(method.name)),
                    GetMessageClass(method.input_type),
                    is_stream=method.name in STREAMS,
                    reads=method.client_streaming,
                )
    return found


def _texts(method: str) -> bytes:
    """Return the rights of who asks, if the node that answers is to look at them."""
    row = METHODS[method]
    return texts_of(CALLER.get()) if row.is_of_all or row.named is not None else b""


def _fenced(error: Exception) -> Fenced:
    return Fenced(f"it may have been done, or not, so it was not asked again: {error}")


async def _next(call: RemoteCall) -> bytes | None:
    try:
        return await call.message()
    except Lost as error:  # the client has had a part of it: it goes on by itself
        raise Unavailable(str(error)) from error


async def _say(call: RemoteCall, stream: Stream) -> None:
    while (request := await stream.read()) is not None:
        await call.say(request.SerializeToString())
    await call.half_close()
