"""What holds for the whole suite: how Hypothesis explores, how coroutines run, no skips in CI.

Under CI (the variable `CI` is set) examples are derandomized, so a red build is the change's fault
and never the dice's. `make sim` explores with the seed it prints.
"""

import asyncio
import functools
import gc
import inspect
import logging
import os
import signal
from collections.abc import Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Any

import pytest
import uvloop
from hypothesis import settings

import waterclock.server  # noqa: F401 - before gRPC is loaded: it sets what gRPC reads then
from tests.kit import needs
from tests.kit.examples import FULL, examples
from waterclock.node.schedule import recurrence_steps
from waterclock.runtime.structured_log import StandardErrorHandler

if TYPE_CHECKING:
    from tests.burrow.kafka.kafka_broker import KafkaBroker

# No deadlines: the machine is shared, and a slow example is no bug.
settings.register_profile("default", deadline=None, print_blob=True, max_examples=examples(FULL))
settings.register_profile("ci", settings.get_profile("default"), derandomize=True)
# For make check, which wants a fifth of them.
settings.register_profile("quick", settings.get_profile("ci"))
# Each shard brings its own seed, and the database would replay other runs' examples.
settings.register_profile(
    "sim", settings.get_profile("default"), derandomize=False, database=None, max_examples=FULL
)
settings.load_profile("ci" if os.environ.get("CI") else "default")

# A JVM that writes down its classes at its end takes a core for half a minute, on a cold machine
# for each test that starts one.
os.environ.setdefault("WATERCLOCK_SPARK_ARCHIVE", "off")

# For every JVM that is started by whatever: all of them are over before well compiled code, or a
# collector with threads of its own, has paid for itself.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

# A disk with other work to do may take more than a second for what a recurrence writes. Tests that
# are about a partition that does not answer say themselves how long it is waited for.
recurrence_steps.PATIENCE_S = 60.0

SKIPS_ALLOWED_IN_CI: frozenset[str] = frozenset()
"""Node ids CI may skip, each with a comment why; a test nobody runs proves nothing."""

OFFLINE = "Skipped: offline:"
"""A server of somebody else's that is not in the cache, and its registry does not answer."""

NO_AIO = "Skipped: no AIO:"
"""A kernel or sandbox that runs no fsyncs for us, or has no disk for that (`tests/kit/aio.py`)."""

TEST_S = 120
"""How long an `async def` test may take: one that waits for ever fails, and says where."""

ON_UVLOOP = ("tests/server/", "tests/integration/")
"""Where whole nodes are tested: in the loop they have when they are served."""

_skipped: dict[str, str] = {}


def pytest_configure(config: pytest.Config) -> None:
    # A shell starts what goes to the background without it, and tests press Ctrl-C.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for name, what in needs.NEEDS.items():
        config.addinivalue_line("markers", f"{name}: needs {what}")


def pytest_itemcollected(item: pytest.Item) -> None:
    for name in sorted(needs.needs_of(item.nodeid, getattr(item, "fixturenames", ()))):
        item.add_marker(name)
    if hasattr(getattr(item, "obj", None), "hypothesis"):
        item.add_marker("explores")


def pytest_collection_finish() -> None:
    """Have the collector pass over what stays to the end: modules and thousands of tests."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    needs.allow({marker.name for marker in item.iter_markers()})
    try:
        return (yield)
    finally:
        needs.allow(None)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> None:
    """Let an `async def` test run in a loop of its own, each example of Hypothesis too."""
    factory = uvloop.new_event_loop if pyfuncitem.nodeid.startswith(ON_UVLOOP) else None
    given = getattr(pyfuncitem.obj, "hypothesis", None)
    if given is not None and inspect.iscoroutinefunction(given.inner_test):
        given.inner_test = _in_a_loop(given.inner_test, factory)
    elif inspect.iscoroutinefunction(pyfuncitem.obj):
        pyfuncitem.obj = _in_a_loop(pyfuncitem.obj, factory)


def _in_a_loop(
    test: Callable[..., Coroutine[Any, Any, None]],
    factory: Callable[[], asyncio.AbstractEventLoop] | None,
) -> Callable[..., None]:
    async def bounded(*args: Any, **kwargs: Any) -> None:
        async with asyncio.timeout(TEST_S):
            await test(*args, **kwargs)

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(bounded(*args, **kwargs))

    return run


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give all tests that share a server to one worker, and begin with what takes long.

    pytest-xdist has groups for that, but since pytest 9.2 it cannot tell the scheduler of them.
    """
    from tests.kit.workers import ByServer

    return ByServer(config, log)


@pytest.fixture(autouse=True)
def as_if_no_log_was_begun() -> Iterator[None]:
    """Undo what a command that was called in this process did to the log."""
    root = logging.getLogger()
    level = root.level
    yield
    for handler in [each for each in root.handlers if isinstance(each, StandardErrorHandler)]:
        root.removeHandler(handler)
        root.setLevel(level)


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator["KafkaBroker"]:
    """Return a Kafka that runs, one for all; make topics and groups of your own."""
    from benchmarks.peers.cache import Absent
    from tests.burrow.kafka.kafka_broker import running

    try:
        with running(tmp_path_factory.mktemp("kafka")) as broker:
            yield broker
    except Absent as reason:
        pytest.skip(f"offline: {reason}")


def _note_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    # An expected failure also reports as skipped; it ran, and xfail_strict watches it.
    if report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else ""
        if not str(reason).startswith((OFFLINE, NO_AIO)):
            _skipped[report.nodeid] = str(reason)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _note_skip(report)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    _note_skip(report)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if _forbidden_skips() and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for nodeid in _forbidden_skips():
        why = _skipped[nodeid]
        terminalreporter.write_line(f"skipped, which CI forbids: {nodeid} ({why})", red=True)


def _forbidden_skips() -> list[str]:
    return sorted(set(_skipped) - SKIPS_ALLOWED_IN_CI) if os.environ.get("CI") else []
