"""Which worker of pytest-xdist runs which tests, and when: those that share a server go to one.

A server is then started once, and not on each worker. What takes long begins first, so that no
worker is alone with it at the end, while the others have nothing left to do.
"""

import re
from typing import Any

from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

from tests.kit import needs

STORE_TEST = re.compile(r"tests/stores/test_(?:(\w+)_store\.py|\w+\.py::\w+\[(\w+))")
"""The tests of one store: by their file, or by the parameter they run with."""

ETCD_TEST = re.compile(r"tests/cluster/coordinator/(test_etcd\.py|\w+\.py::\w+\[etcd)")

LONG_TEST = re.compile(r"tests/(simulation|demos|backup|cluster/simulation)/|.*(histor|hot_timers)")
"""Beside what needs a server or time (`tests/kit/needs.py`): what explores."""

LONGEST = ("spark", "kafka")
"""Groups that one worker is busy with for most of a run."""


def group_of(nodeid: str) -> str:
    """Return what a test shares with others; its own id if that is nothing."""
    if nodeid.startswith("tests/spark/"):  # one session, of a gigabyte
        return "spark"
    # One broker, of half a gigabyte.
    if nodeid.startswith(("tests/burrow/kafka/", "tests/docs/")):
        return "kafka"
    if ETCD_TEST.match(nodeid):  # one member for most, three for some
        return "etcd"
    if nodeid.startswith("tests/browser/"):
        return "browser"
    if nodeid.startswith("tests/deploy/"):  # one image, which takes a while to build
        return "deploy"
    if nodeid.startswith("tests/dispatch/"):  # servers of Redis, a few for each file
        return nodeid.partition("::")[0]
    found = STORE_TEST.match(nodeid)
    return nodeid if found is None else f"store {found[1] or found[2]}"


def turn_of(group: str) -> int:
    """Return how soon a group is to begin: the lowest first."""
    if group in LONGEST:
        return LONGEST.index(group)
    if "::" not in group:
        return len(LONGEST)
    is_long = LONG_TEST.match(group) or needs.needs_of(group, ())
    return len(LONGEST) + (1 if is_long else 2)


class ByServer(LoadScopeScheduling):  # type: ignore[misc]
    """Gives groups to workers, and forgets those that are done.

    The scheduler below it looks at all it ever gave whenever a test is over, and for the number of
    each test at all tests there are: with ten thousand groups, seconds.
    """

    def __init__(self, config: Any, log: Any) -> None:
        super().__init__(config, log)
        self._numbers: dict[str, int] = {}

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)

    def _assign_work_unit(self, node: Any) -> None:
        if not self._numbers:  # all workers have collected the same
            self._numbers = {nodeid: number for number, nodeid in enumerate(self.collection)}
            for group in sorted(self.workqueue, key=turn_of):
                self.workqueue.move_to_end(group)
        group, unit = self.workqueue.popitem(last=False)
        self.assigned_work[node][group] = unit
        node.send_runtest_some(
            [self._numbers[each] for each, is_done in unit.items() if not is_done]
        )

    def mark_test_complete(self, node: Any, item_index: int, duration: float = 0) -> None:
        nodeid = self.registered_collections[node][item_index]
        group = group_of(nodeid)
        unit = self.assigned_work[node][group]
        unit[nodeid] = True
        if all(unit.values()):
            del self.assigned_work[node][group]
        self._reschedule(node)
