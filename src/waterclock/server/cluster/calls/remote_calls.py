"""Asks other nodes to answer calls of gRPC.

A call ends as it would here: with its answers, or with the error that was raised there. If the link
breaks before the end, nobody knows whether it was done (`Lost`); if it could not even be asked, it
was not (`Unreachable`).
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol

from waterclock.cluster.peer_link.channels import Cancelled, Channel, Listener
from waterclock.cluster.remote_calls import (
    CALL,
    END,
    BadCall,
    CallHead,
    Item,
    message,
    rights,
    stop,
)
from waterclock.model.errors import Stopping, Unreachable
from waterclock.runtime.call_channel import CallChannel
from waterclock.server.cluster.calls.whole_answer import Lost


class Asks(Protocol):
    """Carries requests to nodes."""

    def ask(
        self, node_id: str, method: int, body: bytes, caller: Listener, *, is_last: bool = True
    ) -> Channel:
        """Ask; raises Unreachable if there is no way to that node now."""
        ...


class RemoteCalls:
    """Asks over the links of a node."""

    def __init__(self, asks: Asks) -> None:
        self._asks = asks
        self.asked = 0
        """Calls, each time they were asked of another node."""

    def __repr__(self) -> str:
        return f"<RemoteCalls {self.asked} asked>"

    async def unary(
        self,
        node: str,
        method: str,
        request: bytes,
        *,
        partitions: tuple[int, ...] = (),
        texts: bytes = b"",
    ) -> bytes:
        """Return a node's answer; raises what it raised, Unreachable, or Lost. `texts` are the
        rights of who asks, if the node is to look at them."""
        async with self.begun(node, method, request, partitions, texts, is_last=True) as call:
            found = await call.message()
            if found is None or await call.message() is not None:
                raise BadCall(f"{node} did not give one answer to {method}")
            return found

    @asynccontextmanager
    async def begun(
        self,
        node: str,
        method: str,
        request: bytes,
        partitions: tuple[int, ...] = (),
        texts: bytes = b"",
        *,
        is_last: bool,
    ) -> AsyncIterator["RemoteCall"]:
        """Ask a node, with the first of the requests; leaving ends the call."""
        call = CallChannel()
        head = CallHead(method, partitions).encode()
        body = b"".join((head, rights(texts), message(request)))
        call.channel = self._asks.ask(node, CALL, body, call, is_last=is_last)
        self.asked += 1
        try:
            yield RemoteCall(node, call, is_last=is_last)
        finally:
            call.channel.cancel("the client has gone")


class RemoteCall:
    """A call that another node answers."""

    def __init__(self, node: str, call: CallChannel, *, is_last: bool) -> None:
        self._node = node
        self._call = call
        self._is_last = is_last
        """All requests were sent."""

    async def message(self) -> bytes | None:
        """Return the next answer; None if the call has ended well. Raises why it did not."""
        item = await self._take()
        if item.kind != END:
            return item.body
        failure = item.failure
        if failure is not None:
            raise failure.exception()
        return None

    async def say(self, request: bytes) -> None:
        """Send one more request."""
        await self._call.send(message(request))

    def stop(self) -> None:
        """Have a stream end soon, for this node stops; again: at once."""
        if self._is_last:  # there is nothing more to hear from the client
            self._call.failed(Stopping("the node is stopping: try again, or elsewhere"))
        else:
            self._call.channel.send(stop())

    async def half_close(self) -> None:
        """Say that there are no more requests."""
        self._is_last = True
        await self._call.send(b"", is_last=True)

    async def _take(self) -> Item:
        try:
            item = await self._call.take()
        except Cancelled as error:  # it was refused before anything was done
            raise Unreachable(f"{self._node} does not answer: {error}") from error
        except Unreachable as error:
            raise Lost(str(error)) from error
        if item is None:
            raise BadCall(f"{self._node} ended a call without a word")
        return item
