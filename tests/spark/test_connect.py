"""The same jobs by Spark Connect: attached to a server, nothing of Spark started here."""

import json
import os
import subprocess
import sys

import pytest

from tests.spark.clusters import connect_server

JOB_S_MAX = 300.0


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with connect_server(tmp_path_factory.mktemp("connect")) as url:
        yield url


def pipeline(server, *arguments):
    """Run a job in a process of its own: one process has either kind of session, not both."""
    return subprocess.run(
        [sys.executable, "-m", "waterclock", "pipeline", *arguments, "--master", server],
        env={**os.environ}, capture_output=True, text=True, timeout=JOB_S_MAX, check=False,
    )  # fmt: skip


def test_a_job_runs_attached_to_a_server(server, node, topic):
    node.client.topics.create(topic, partitions=2)
    for partition in (0, 1):
        node.fill(topic, partition, 500, first=500 * partition)
    arguments = ["replay", topic, "--to-topic", f"{topic}-copy", "--where", "offset < 100"]
    done = pipeline(server, *arguments, "--address", node.servers, "--json")

    assert done.returncode == 0, done.stderr[-4000:]
    assert json.loads(done.stdout)["rows"] == 200
    assert len(list(node.client.replay(f"{topic}-copy"))) == 200


def test_a_server_that_is_not_there_is_told_in_a_line(node):
    done = pipeline("sc://127.0.0.1:1", "report", "--address", node.servers)

    assert done.returncode == 1
    assert done.stderr.startswith("error: no Spark Connect server answers at sc://127.0.0.1:1")
    assert len(done.stderr.splitlines()) == 1
