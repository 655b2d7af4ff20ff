"""The JVM that a session talks to, started by us and not by pyspark.

pyspark forks this process to start it and then runs Python in the child (to ignore Ctrl-C). gRPC
has hooks in every fork, and in a process whose channels are busy they sometimes end the child
before it has become a JVM. We start the same command without running Python in between; a shell
that becomes the JVM ignores Ctrl-C for it.

The JVM ends when its standard input does, which is at the latest when this process is gone.
"""

import os
import shlex
import subprocess
import tempfile
import time
from pathlib import Path
from typing import IO

from py4j.java_gateway import JavaGateway  # type: ignore[import-untyped]
from pyspark.conf import SparkConf
from pyspark.find_spark_home import _find_spark_home
from pyspark.java_gateway import launch_gateway
from pyspark.serializers import UTF8Deserializer, read_int

from waterclock.model.errors import Unreachable

LOOK_EVERY_S = 0.02
IGNORING_CTRL_C = """trap '' INT; exec "$@" """
PORT = "PYSPARK_GATEWAY_PORT"
SECRET = "PYSPARK_GATEWAY_SECRET"


def start_gateway(conf: SparkConf, log: IO[bytes] | None) -> JavaGateway:
    """Start a JVM and return what pyspark talks to it through; `proc` of it is the process."""
    with tempfile.TemporaryDirectory(prefix="waterclock-spark-") as folder:
        port_file = Path(folder, "port")
        jvm = subprocess.Popen(
            _command(conf),
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            env={
                **os.environ,
                "SPARK_CONNECT_MODE": "0",
                "_PYSPARK_DRIVER_CONN_INFO_PATH": str(port_file),
            },
        )
        try:
            port, secret = _wait_for(jvm, port_file)
            gateway = _attached(port, secret)
        except BaseException:
            jvm.kill()
            jvm.communicate()  # waits for its end, and closes the pipe
            raise
    gateway.proc = jvm
    return gateway


def _command(conf: SparkConf) -> list[str]:
    submit = str(Path(_find_spark_home(), "bin", "spark-submit"))
    settings = [f"--conf={name}={value}" for name, value in conf.getAll()]
    asked = shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell"))
    return ["/bin/sh", "-c", IGNORING_CTRL_C, submit, submit, *settings, *asked]


def _wait_for(jvm: subprocess.Popen[bytes], port_file: Path) -> tuple[int, str]:
    """Return the port and the secret that the JVM writes to a file, whole."""
    while not port_file.is_file():
        if (code := jvm.poll()) is not None:
            raise Unreachable(
                f"the JVM of Spark ended with {code} before it was there; why, it wrote to stderr "
                "(or to the log it was given)"
            )
        time.sleep(LOOK_EVERY_S)
    with port_file.open("rb") as file:
        port = read_int(file)  # type: ignore[no-untyped-call]
        return port, UTF8Deserializer().loads(file)  # type: ignore[no-untyped-call]


def _attached(port: int, secret: str) -> JavaGateway:
    """Let pyspark take the JVM for one that was there before, as it is under spark-submit."""
    os.environ |= {PORT: str(port), SECRET: secret}
    try:
        return launch_gateway()  # type: ignore[no-untyped-call]
    finally:
        del os.environ[PORT], os.environ[SECRET]
