"""The same jobs on a real cluster: a standalone master with two workers, by spark-submit."""

import json
import os
import stat
import subprocess
import sys
import sysconfig

import pytest

from tests.spark.clusters import ENVIRONMENT, LOOPBACK, PACKAGE, standalone
from waterclock.spark import submit
from waterclock.spark.shipping import write_zip

SUBMIT_S_MAX = 300.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("cluster")


@pytest.fixture(scope="module")
def master(folder):
    with standalone(folder, workers=2) as url:
        yield url


@pytest.fixture
def spark_submit(master, node, folder):
    """Return a function that runs a job by spark-submit and answers with its summary."""

    def run(*arguments, environment=None, options=()):
        command = [
            str(PACKAGE / "bin" / "spark-submit"), "--master", master,
            "--conf", f"spark.driver.host={LOOPBACK}",
            "--conf", "spark.ui.enabled=false",
            "--conf", "spark.executor.memory=512m",
            "--conf", "spark.executor.extraJavaOptions=-XX:TieredStopAtLevel=1",
            "--driver-java-options", "-XX:TieredStopAtLevel=1",
            # The job waits for both, and so uses both.
            "--conf", "spark.scheduler.minRegisteredResourcesRatio=1.0",
            "--conf", "spark.scheduler.maxRegisteredResourcesWaitingTime=120s",
            *options, submit.__file__, *arguments, "--address", node.servers, "--json",
        ]  # fmt: skip
        done = subprocess.run(
            command, cwd=folder, env={**os.environ, **ENVIRONMENT, **(environment or {})},
            capture_output=True, text=True, timeout=SUBMIT_S_MAX, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-4000:]
        return json.loads(done.stdout.splitlines()[-1])

    return run


def filled(node, topic):
    """Make a topic of two partitions, and so of two tasks."""
    node.client.topics.create(topic, partitions=2)
    for partition in (0, 1):
        node.fill(topic, partition, 1_000, first=1_000 * partition)


def values(node, topic):
    return sorted(each.value for each in node.client.replay(topic))


def test_a_job_reads_and_writes_from_both_workers_with_the_same_venv(
    spark_submit, node, topic, folder
):
    filled(node, topic)
    summary = spark_submit("replay", topic, "--to-topic", f"{topic}-copy")

    assert (summary["job"], summary["rows"]) == ("replay", 2_000)
    assert values(node, f"{topic}-copy") == values(node, topic)
    for number in (0, 1):
        # A worker that ran an executor has a folder for the application.
        assert list((folder / f"worker-{number}").glob("app-*")) != []


def test_the_package_can_be_shipped_as_a_zip_to_machines_without_it(
    spark_submit, node, topic, folder, tmp_path
):
    filled(node, topic)
    write_zip(tmp_path / "waterclock.zip")
    bare = bare_python(tmp_path / "python")
    without = subprocess.run([bare, "-c", "import waterclock"], capture_output=True, check=False)
    assert b"No module named 'waterclock'" in without.stderr

    summary = spark_submit(
        "replay", topic, "--to-topic", f"{topic}-copy",
        options=["--py-files", str(tmp_path / "waterclock.zip")],
        environment={"PYSPARK_PYTHON": bare, "PYSPARK_DRIVER_PYTHON": bare},
    )  # fmt: skip

    assert summary["rows"] == 2_000
    assert values(node, f"{topic}-copy") == values(node, topic)


def bare_python(path):
    """Write a Python with all that is installed here but Waterclock: path files, of which its
    editable install is one, are read only in site folders."""
    site = sysconfig.get_path("purelib")
    path.write_text(
        f'#!/bin/sh\nexport PYTHONPATH="$PYTHONPATH:{site}"\nexec {sys.executable} -S "$@"\n'
    )
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)
