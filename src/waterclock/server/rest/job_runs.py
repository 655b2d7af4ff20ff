"""Runs of jobs over HTTP: a job tells of its run, and people see the last ones."""

from typing import Annotated, Literal

from msgspec import Meta, structs

from waterclock.model.views import JobRun
from waterclock.node.job_runs import REPORT_CHARS_MAX, TEXT_CHARS_MAX
from waterclock.node.node import Node
from waterclock.security.rights import Needs
from waterclock.server.cluster.calls.place import META
from waterclock.server.http.input import body_of, parameters_of
from waterclock.server.http.messages import Request, Response, json
from waterclock.server.http.operations import Operation, ResponseSpec
from waterclock.server.http.permits import Named
from waterclock.server.rest.models import (
    AnyTopicName,
    Name,
    Offset,
    RequestModel,
    ResponseModel,
)

TASKS_MAX = (1 << 31) - 1

Tasks = Annotated[int, Meta(ge=0, le=TASKS_MAX)]
ShortText = Annotated[str, Meta(max_length=TEXT_CHARS_MAX)]


class RunParameters(RequestModel):
    name: Name


class RunRequest(RequestModel):
    """What a run tells of itself, each time all that it knows."""

    job: Annotated[Name, Meta(examples=["compact"])]
    topic: Annotated[AnyTopicName, Meta(description="None: of all, or of several.")] | None = None
    state: Literal["running", "done", "failed"] = "running"
    stage: Annotated[ShortText, Meta(description="What it is doing.")] = ""
    tasks_done: Tasks = 0
    tasks: Tasks = 0
    rows_read: Offset | None = None
    rows: Annotated[Offset, Meta(description="Written, sent or kept.")] | None = None
    rejected: Offset | None = None
    size_bytes: Offset | None = None
    error: Annotated[ShortText, Meta(description="Why it failed.")] = ""
    report: Annotated[
        str, Meta(max_length=REPORT_CHARS_MAX, description="Its summary, as a text of JSON.")
    ] = ""


class RunsResponse(ResponseModel):
    runs: list[JobRun]


class JobRunsApi:
    """Takes and shows what runs tell."""

    def __init__(self, node: Node) -> None:
        self._node = node

    async def put(self, request: Request) -> Response:
        """Take note of what a run tells of itself."""
        given = structs.asdict(body_of(request, RunRequest))
        given["topic"] = given["topic"] or ""
        name = parameters_of(request, RunParameters).name
        return json(200, await self._node.job_runs.put(JobRun(name=name, **given)))

    def list_runs(self, request: Request) -> Response:
        """Return the runs of topics that the principal may read."""
        may = request.principal.rights.allows
        found = [
            each for each in self._node.job_runs.list() if may("read", topic=each.topic or None)
        ]
        return json(200, RunsResponse(runs=found))

    def operations(self) -> list[Operation]:
        """Return its part of the table."""
        topic_of = self._node.job_runs.topic_of
        return [
            Operation(
                "GET", "/job-runs", self.list_runs, "listJobRuns",
                "List the last runs of jobs, the newest first.",
                {200: ResponseSpec("All that are remembered.", RunsResponse)}, tag="past",
                place=META,
                needs=Needs("read", is_list=True),
            ),
            Operation(
                "PUT", "/job-runs/{name}", self.put, "putJobRun",
                "Tell of a run of a job: that it has begun, how far it is, how it ended.",
                {200: ResponseSpec("The run as it is known.", JobRun)}, tag="past",
                parameters=RunParameters, body=RunRequest,
                body_example={"job": "compact", "topic": "orders", "stage": "writing messages"},
                description="Times are the node's. A run that has ended stays as it is; one that "
                "tells nothing for a minute is shown as `silent`.",
                problems=(409, 507),
                place=META,
                needs=Needs("read", topic="topic"), named=Named("run", "name", topic_of),
            ),
        ]  # fmt: skip
