"""The same jobs on a real cluster: a standalone master with two workers, by spark-submit.

With the package installed on the workers they run in `test_killed_executor.py`.
"""

import json
import os
import stat
import subprocess
import sys
import sysconfig

import pytest

from tests.spark.clusters import ENVIRONMENT, LOOPBACK, PACKAGE, SHORT_LIVED
from waterclock.spark import submit
from waterclock.spark.shipping import write_zip

SUBMIT_S_MAX = 600.0
"""A bound for what hangs; on a busy machine a driver and two executors take minutes."""


@pytest.fixture
def spark_submit(cluster, node):
    """Return a function that runs a job by spark-submit and answers with its summary."""

    def run(*arguments, environment=None, options=()):
        command = [
            str(PACKAGE / "bin" / "spark-submit"), "--master", cluster.master,
            "--conf", f"spark.driver.host={LOOPBACK}",
            "--conf", "spark.ui.enabled=false",
            "--conf", "spark.executor.memory=512m",
            "--conf", f"spark.executor.extraJavaOptions={SHORT_LIVED}",
            "--driver-java-options", SHORT_LIVED,
            # The job waits for both, and so uses both.
            "--conf", "spark.scheduler.minRegisteredResourcesRatio=1.0",
            "--conf", "spark.scheduler.maxRegisteredResourcesWaitingTime=600s",
            *options, submit.__file__, *arguments, "--address", node.servers, "--json",
        ]  # fmt: skip
        done = subprocess.run(
            command, cwd=cluster.folder, env={**os.environ, **ENVIRONMENT, **(environment or {})},
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


def applications(cluster, worker):
    """Return what a worker ran an executor of: it has a folder for each."""
    return set((cluster.folder / f"worker-{worker}").glob("app-*"))


def test_a_job_runs_on_both_workers_with_the_package_shipped_to_them_as_a_zip(
    spark_submit, cluster, node, topic, tmp_path
):
    filled(node, topic)
    before = [applications(cluster, worker) for worker in (0, 1)]
    write_zip(tmp_path / "waterclock.zip")
    bare = bare_python(tmp_path / "python")
    without = subprocess.run([bare, "-c", "import waterclock"], capture_output=True, check=False)
    assert b"No module named 'waterclock'" in without.stderr

    summary = spark_submit(
        "replay", topic, "--to-topic", f"{topic}-copy",
        options=["--py-files", str(tmp_path / "waterclock.zip")],
        environment={"PYSPARK_PYTHON": bare, "PYSPARK_DRIVER_PYTHON": bare},
    )  # fmt: skip

    assert (summary["job"], summary["rows"]) == ("replay", 2_000)
    assert values(node, f"{topic}-copy") == values(node, topic)
    for worker in (0, 1):
        assert len(applications(cluster, worker) - before[worker]) == 1


def bare_python(path):
    """Write a Python with all that is installed here but Waterclock: path files, of which its
    editable install is one, are read only in site folders."""
    site = sysconfig.get_path("purelib")
    path.write_text(
        f'#!/bin/sh\nexport PYTHONPATH="$PYTHONPATH:{site}"\nexec {sys.executable} -S "$@"\n'
    )
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)
