"""Tests that share a server go to one worker, and what takes long begins first."""

from collections import OrderedDict
from types import SimpleNamespace

from tests.kit.workers import ByServer, group_of, turn_of

QUICK = "tests/model/test_ids.py::test_a"
LONG = "tests/storage/test_histories.py::test_no_history_breaks_a_guarantee[1]"
CHAOS = "tests/integration/test_pauses.py::test_a"
STORE = "tests/stores/test_paging.py::test_a[mysql]"
SPARK = "tests/spark/test_sql.py::test_a"


class FakeWorker:
    """Takes down which tests it was given."""

    def __init__(self):
        self.given = []
        self.shutting_down = False
        self.gateway = SimpleNamespace(id="gw0")

    def send_runtest_some(self, numbers):
        self.given.append(numbers)

    def shutdown(self):
        self.shutting_down = True


def test_tests_of_one_server_are_a_group_and_others_are_alone():
    assert group_of(SPARK) == group_of("tests/spark/test_audit.py::test_b") == "spark"
    assert group_of(STORE) == group_of("tests/stores/test_mysql_store.py::test_b") == "store mysql"
    assert group_of("tests/cluster/coordinator/test_leases.py::test_a[etcd]") == "etcd"
    assert group_of(QUICK) == QUICK


def test_long_groups_come_before_long_tests_and_those_before_quick_ones():
    groups = [QUICK, CHAOS, group_of(STORE), LONG, "kafka", "spark"]

    assert sorted(groups, key=turn_of) == [
        "spark", "kafka", "store mysql", CHAOS, LONG, QUICK,
    ]  # fmt: skip


def test_every_test_is_given_once_and_the_worker_ends_when_none_is_left():
    collected = [QUICK, STORE, LONG, SPARK, STORE.replace("test_a", "test_b")]
    option = SimpleNamespace(loadscopereorder=True, tx=["popen"], px=[], maxprocesses=None)
    config = SimpleNamespace(option=option, getvalue=lambda name: ["popen"])
    scheduler = ByServer(config, None)
    scheduler.numnodes = 1
    worker = FakeWorker()
    scheduler.add_node(worker)
    scheduler.add_node_collection(worker, collected)

    scheduler.schedule()
    done = 0
    while scheduler.has_pending:
        number = [number for numbers in worker.given for number in numbers][done]
        scheduler.mark_test_complete(worker, number)
        done += 1

    assert worker.given == [[3], [1, 4], [2], [0]]
    assert worker.shutting_down
    assert scheduler.tests_finished
    assert scheduler.assigned_work == {worker: {}}
    assert scheduler.workqueue == OrderedDict()
