"""All commands there are, by name: where each is, and what the help says of it.

It is what `waterclock --help` and completion need, so that only the command that is called is
imported.
"""

from typing import NamedTuple

RUNNING, MESSAGES, UPKEEP = "Running", "Messages", "Looking after a node"


class Entry(NamedTuple):
    """A command, or a group of commands."""

    module: str
    """Below `waterclock.cli.commands`."""
    attribute: str
    """A function, or a group as `typer.Typer`."""
    panel: str
    help: str
    """As the command says it of itself."""


COMMANDS = {
    "up": Entry(
        "up",
        "up",
        RUNNING,
        "Run a node: gRPC for publishing, consuming and scheduling, HTTP for streams and metrics;"
        " on all cores, with --processes; or a cluster on this machine, with --nodes.",
    ),
    "dispatch": Entry(
        "dispatch",
        "dispatch",
        RUNNING,
        "Run a dispatcher: messages of Redis, handed to workers, each written once.",
    ),
    "worker": Entry(
        "worker",
        "worker",
        RUNNING,
        "Run a worker: call a function with each message, write what it returns.",
    ),
    "publish": Entry(
        "publish",
        "publish",
        MESSAGES,
        "Publish a message, now, for later or again and again; or each line of a file.",
    ),
    "subscribe": Entry(
        "subscribe",
        "subscribe",
        MESSAGES,
        "Print messages as they come, and ack them. Ctrl-C ends it.",
    ),
    "replay": Entry(
        "replay",
        "replay",
        MESSAGES,
        "Print messages of the past: by time, by offset, or all there are.",
    ),
    "send": Entry(
        "send",
        "send",
        MESSAGES,
        "Send a message to a stream, to whoever waits there, or each line of stdin.",
    ),
    "receive": Entry(
        "receive",
        "receive",
        MESSAGES,
        "Print the next message of a stream, or wait for it; or all of them, as they come.",
    ),
    "backup": Entry(
        "backups.backup",
        "backup",
        UPKEEP,
        "Copy all that a node stores, while it runs; what FOLDER has already is not copied again.",
    ),
    "restore": Entry(
        "backups.restore",
        "restore",
        UPKEEP,
        "Make the data of a node from a backup; every checksum, frame and row is checked.",
    ),
    "schedule": Entry(
        "schedule",
        "app",
        MESSAGES,
        "See what is to come; cancel, move and repeat it. Alone, it lists.",
    ),
    "dlq": Entry(
        "dlq",
        "app",
        MESSAGES,
        "Look at dead letters, publish them again or let them go. Alone, it counts them.",
    ),
    "secure": Entry(
        "secure",
        "app",
        RUNNING,
        "Let a node ask who is there: certificates, credentials, rights.",
    ),
    "topics": Entry(
        "topics",
        "app",
        UPKEEP,
        "List, make, change and delete topics. Alone, it lists them.",
    ),
    "groups": Entry(
        "groups",
        "app",
        UPKEEP,
        "See how far groups have come, move and delete them. Alone, it lists them.",
    ),
    "streams": Entry(
        "streams",
        "app",
        UPKEEP,
        "List, look at, resize and delete streams. Alone, it lists them.",
    ),
    "cluster": Entry(
        "cluster.cluster",
        "app",
        UPKEEP,
        "See who is in the cluster and what happened, and move replicas. Alone, it lists members.",
    ),
    "pipeline": Entry(
        "pipeline",
        "app",
        UPKEEP,
        "Bulk jobs on Spark: ingest, compact, replay, schedule, redrive, report.",
    ),
    "replays": Entry(
        "replays",
        "app",
        UPKEEP,
        "See how far named replays have come, and forget them. Alone, it lists them.",
    ),
    "bench": Entry("bench", "app", RUNNING, "Measure a running node from here."),
    "log": Entry("logs.log_app", "app", UPKEEP, "Look into a log on disk, or repair it."),
}
"""In the order of the help."""
