"""The table of what HTTP offers of streams."""

from typing import Annotated, Any

from msgspec import Meta

from waterclock.model.views import StreamInfo
from waterclock.security.rights import Needs
from waterclock.server.http.messages import EVENTS
from waterclock.server.http.operations import Operation, ResponseSpec
from waterclock.server.streams.api import StreamsApi
from waterclock.server.streams.listing import Listed
from waterclock.server.streams.models import (
    ONE_VOCABULARY,
    ReceivedMessage,
    ReceivedPage,
    ReceiveParameters,
    ResizeBody,
    SendBody,
    SendResponse,
    StoreBody,
    StoreResponse,
    StreamList,
    StreamParameters,
)
from waterclock.server.streams.published import (
    RECEIVE_PATH,
    SEND_PATH,
    PublishedApi,
    PublishedMessage,
    PublishedReceive,
    PublishedSend,
    PublishedSent,
)

_Send = Annotated[SendBody, Meta(extra_json_schema=ONE_VOCABULARY)]
_Store = Annotated[StoreBody, Meta(extra_json_schema=ONE_VOCABULARY)]


def stream_operations(streams: StreamsApi) -> list[Operation]:
    """Return the part of the table that is about streams."""
    return [*_own(streams), *_published(PublishedApi(streams))]


def _own(streams: StreamsApi) -> list[Operation]:
    common: dict[str, Any] = {"tag": "streams"}
    received = {
        200: ResponseSpec(
            "A message; a list of them, if a limit was given.", ReceivedMessage | ReceivedPage
        )
    }
    sent = {200: ResponseSpec("It is in the stream, or was handed over.", SendResponse)}
    return [
        Operation(
            "POST", "/streams/send", streams.send, "send", "Send a message to a stream.",
            sent, **common, body=_Send,
            problems=(413, 424),
            needs=Needs("publish", stream="stream_id"), makes=("stream",),
        ),
        Operation(
            "POST", "/streams/sendAndStore", streams.send_and_store, "sendAndStore",
            "Store a message in a stream.", {201: ResponseSpec("It is stored.", StoreResponse)},
            **common, body=_Store, problems=(413, 424),
            needs=Needs("publish", stream="stream_id"), makes=("stream",),
        ),
        Operation(
            "GET", "/streams/receive", streams.receive, "receive",
            "Receive the next message of a stream, or wait for it.", received, **common,
            parameters=ReceiveParameters, problems=(403, 410, 424), is_taking=True,
            needs=Needs("consume", stream="stream_id"), makes=("stream",),
        ),
        Operation(
            "GET", "/streams/events", streams.events, "streamEvents",
            "Receive messages as server-sent events; `Last-Event-ID` resumes.",
            {200: ResponseSpec("Events, each with its token as id.", content_type=EVENTS)},
            **common, parameters=ReceiveParameters, problems=(403, 410, 424),
            needs=Needs("consume", stream="stream_id"), makes=("stream",),
        ),
        Operation(
            "GET", "/streams", streams.listing.answer, "listStreams", "List streams in memory.",
            {200: ResponseSpec("Their names.", StreamList)}, **common, parameters=Listed,
            needs=Needs("read", is_list=True),
        ),
        Operation(
            "GET", "/streams/{streamId}", streams.get, "getStream", "Look at a stream.",
            {200: ResponseSpec("What is known of it.", StreamInfo)}, **common,
            parameters=StreamParameters, problems=(404,),
            needs=Needs("read", stream="stream_id"),
        ),
        Operation(
            "PATCH", "/streams/{streamId}", streams.resize, "resizeStream",
            "Let a stream hold another number of messages.",
            {200: ResponseSpec("What is known of it.", StreamInfo)}, **common,
            parameters=StreamParameters, body=ResizeBody, problems=(404,),
            needs=Needs("publish", stream="stream_id"),
        ),
        Operation(
            "DELETE", "/streams/{streamId}", streams.delete, "deleteStream",
            "Forget a stream, in memory and in the store.", {204: ResponseSpec("It is gone.")},
            **common, parameters=StreamParameters, problems=(404,),
            needs=Needs("admin", stream="stream_id"),
        ),
    ]  # fmt: skip


def _published(api: PublishedApi) -> list[Operation]:
    common: dict[str, Any] = {"tag": "ipubsub"}
    return [
        Operation(
            "POST", SEND_PATH, api.send, "publishedSend",
            "Send a message to a stream, as iPubSub does.",
            {200: ResponseSpec("It was sent.", PublishedSent)}, **common,
            description="A message that is left out is null.",
            body=PublishedSend, problems=(413, 424),
            needs=Needs("publish", stream="stream_id"), makes=("stream",),
        ),
        Operation(
            "GET", RECEIVE_PATH, api.receive, "publishedReceive",
            "Receive the next message of a stream, or wait for it, as iPubSub does.",
            {200: ResponseSpec("A message.", PublishedMessage)}, **common,
            parameters=PublishedReceive, problems=(424,), is_taking=True,
            needs=Needs("consume", stream="stream_id"), makes=("stream",),
        ),
    ]  # fmt: skip
