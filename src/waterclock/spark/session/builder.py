"""A Spark session with the settings that matter.

    with running_session() as spark:
        spark.read.format("waterclock").option("topic", "orders").load().count()

Three ways lead here. By default Spark runs inside this machine, `local[N,3]`: plain `local[*]`
never tries a task again. `sc://host:port` attaches to a Spark Connect server. Anything else is a
cluster's master. Under spark-submit the JVM is there already, with the master and settings given
to it: nothing of that is changed. What a user sets always wins over what we would.
"""

import os
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from pyspark.conf import SparkConf
from pyspark.core.context import SparkContext
from pyspark.sql import SparkSession

from waterclock.model.errors import Unreachable
from waterclock.model.units import GIB
from waterclock.spark.session.gateway import start_gateway
from waterclock.spark.session.java import find_java
from waterclock.spark.session.jvm_cache import cache_folder, class_options, spark_home
from waterclock.spark.source import register

TASK_ATTEMPTS = 3
LOCAL = "local[*]"
MEMORY_BYTES_MAX = 8 * GIB
"""Of the JVM in which all of a local Spark runs: a quarter of the machine, but no more than this.
It is taken as it is needed. More sorts and joins more without spilling to disk."""

ARCHIVE = "WATERCLOCK_SPARK_ARCHIVE"
"""Set it to "off" where each start is the first, as in CI: to write down the classes takes longer
than to load them, and nobody would read them."""

CONNECT_PORT = 15_002
PROBE_S = 5.0

LOG_FILE = Path(__file__).with_name("log4j2.properties")
ARROW_UNCHECKED = (
    "-Darrow.enable_unsafe_memory_access=true",
    "-Darrow.enable_null_check_for_get=false",
)
"""Spark reads no Arrow value outside its vector, and asks for nulls itself: Arrow need not check
again, for each value, which takes a tenth of the time of a read."""
LOOPBACK = "127.0.0.1"

STEADY = {
    # Everything between the JVM and Python: a third more rows, 40 % less time a micro-batch.
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # Times are shown and read in one zone, whatever the machine is set to.
    "spark.sql.session.timeZone": "UTC",
    # An idle query asks every 100 ms rather than every 10 ms: 3 % of a core and not 16 %.
    "spark.sql.streaming.pollingDelay": "100ms",
    # Spark's own words, and ours: what it shows of options and settings shows no credential.
    "spark.redaction.regex": "(?i)secret|password|passphrase|token|access[.]?key|credential",
    "spark.sql.redaction.options.regex": "(?i)url|credential",
}
"""What holds wherever Spark runs."""

SHORT = {
    # Planning a query again after each of its stages costs a small job 0.7 s of processor, of ten.
    "spark.sql.adaptive.enabled": "false",
}
"""What holds besides for a few seconds' work."""


def session(
    *, master: str = "", app: str = "waterclock", settings: Mapping[str, str] | None = None,
    log: IO[bytes] | None = None, is_short: bool = False,
) -> SparkSession:  # fmt: skip
    """Return a session in which `format("waterclock")` is known.

    `master` is `local[*]` unless given. `settings` are Spark's own and win over ours. What the JVM
    has to say goes to `log`, or to stderr. `is_short` is for a few seconds' work: the JVM compiles
    quickly rather than well, and Spark plans each query once. A session that runs already is taken
    as it is.
    """
    given = dict(settings or {})
    if master.startswith("sc://"):
        spark = _attached(master, app, given)
    elif (running := SparkSession.getActiveSession()) is not None:
        spark = running
    elif "PYSPARK_GATEWAY_PORT" in os.environ:
        spark = _submitted(app, given)
    else:
        spark = _started(master or LOCAL, app, given, log, is_short=is_short)
    register(spark)
    return spark


@contextmanager
def running_session(
    *, master: str = "", app: str = "waterclock", settings: Mapping[str, str] | None = None,
    log: IO[bytes] | None = None,
) -> Iterator[SparkSession]:  # fmt: skip
    """Lend a session, and stop it in the end."""
    spark = session(master=master, app=app, settings=settings, log=log)
    try:
        yield spark
    finally:
        spark.stop()


def _attached(url: str, app: str, given: Mapping[str, str]) -> SparkSession:
    _check_listening(url)
    try:
        builder = SparkSession.builder.remote(url).appName(app)
        for name, value in given.items():
            builder = builder.config(name, value)
        return builder.getOrCreate()
    except Exception as error:
        # pyspark's own errors, gRPC's and missing packages alike: each says why.
        first = str(error).strip().partition("\n")[0]
        raise Unreachable(f"no Spark Connect server answers at {url}: {first}") from error


def _check_listening(url: str) -> None:
    """Raise Unreachable if no process listens there: Spark's client would try for ten minutes."""
    host, _, port = url.removeprefix("sc://").partition("/")[0].rpartition(":")
    try:
        place = (host, int(port)) if host else (port, CONNECT_PORT)
        socket.create_connection(place, timeout=PROBE_S).close()
    except (OSError, ValueError) as error:
        raise Unreachable(f"no Spark Connect server answers at {url}: {error}") from error


def _submitted(app: str, given: Mapping[str, str]) -> SparkSession:
    """Take the context that spark-submit made, and give it what it was not given."""
    context = SparkContext.getOrCreate(SparkConf().setIfMissing("spark.app.name", app))
    spark = SparkSession(context)
    set_by_user = dict(context.getConf().getAll())
    for name, value in {**STEADY, **given}.items():
        if name.startswith("spark.sql.") and (name in given or name not in set_by_user):
            spark.conf.set(name, value)
    return spark


def _started(
    master: str, app: str, given: Mapping[str, str], log: IO[bytes] | None, *, is_short: bool
) -> SparkSession:
    java = find_java()
    cache = cache_folder()
    is_local = master.startswith("local")
    options = [f"-Dlog4j2.configurationFile={LOG_FILE.as_uri()}", *ARROW_UNCHECKED]
    if is_short:
        options.append("-XX:TieredStopAtLevel=1")
    environment = {"PYSPARK_PYTHON": sys.executable, "GRPC_VERBOSITY": "ERROR"}
    if is_local:
        environment["SPARK_LOCAL_IP"] = LOOPBACK
        package = Path(sys.modules["pyspark"].__path__[0])
        if "SPARK_HOME" not in os.environ and (home := spark_home(cache, package)) is not None:
            environment["SPARK_HOME"] = str(home)
            if os.environ.get(ARCHIVE) != "off":
                options += class_options(cache, home, java)
    conf = SparkConf(loadDefaults=False)
    chosen = {**STEADY, **_own(master, options)} if is_local else {**STEADY, **_remote(options)}
    chosen |= SHORT if is_short else {}
    chosen |= {"spark.master": _retrying(master), "spark.app.name": app, **given}
    for name, value in chosen.items():
        conf.set(name, value)
    with _environment(environment):
        gateway = None
        if SparkContext._gateway is None:  # else the JVM of an earlier session serves again
            gateway = start_gateway(conf, log)
        return SparkSession(SparkContext(conf=conf, gateway=gateway))


def _own(master: str, options: list[str]) -> dict[str, str]:
    """Return the settings of a Spark that runs inside this machine."""
    return {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": LOOPBACK,
        "spark.driver.bindAddress": LOOPBACK,
        "spark.driver.memory": f"{_memory_bytes() >> 20}m",
        "spark.driver.extraJavaOptions": " ".join(options),
        "spark.sql.shuffle.partitions": str(_cores(master)),
        "spark.sql.warehouse.dir": str(cache_folder() / "warehouse"),
        "spark.sql.streaming.checkpointFileManagerClass": (
            "org.apache.spark.sql.execution.streaming.checkpointing"
            ".FileSystemBasedCheckpointFileManager"
        ),
    }


def _remote(options: list[str]) -> dict[str, str]:
    return {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.extraJavaOptions": " ".join(options),
    }


def _retrying(master: str) -> str:
    """Return a local master whose tasks are tried again: the plain forms never do."""
    if master == "local":
        return f"local[1,{TASK_ATTEMPTS}]"
    if master.startswith("local[") and "," not in master:
        return f"{master[:-1]},{TASK_ATTEMPTS}]"
    return master


def _cores(master: str) -> int:
    inside = master.partition("[")[2].partition("]")[0].partition(",")[0]
    if inside.isdigit():
        return int(inside)
    return len(os.sched_getaffinity(0)) if inside == "*" else 1


def _memory_bytes() -> int:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(1 * GIB, min(total // 4, MEMORY_BYTES_MAX))


@contextmanager
def _environment(wanted: Mapping[str, str]) -> Iterator[None]:
    """Set variables that are not set while Spark starts: its processes keep them, we do not."""
    added = {name: value for name, value in wanted.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]
