"""What a task that reads does to the garbage collector of its worker."""

import gc

import pyarrow as pa
import pytest
from pyspark.taskcontext import TaskContext

from waterclock.spark.options import ReadOptions
from waterclock.spark.read.batch import LogRanges, read_ranges


@pytest.fixture
def freezes(monkeypatch):
    """The number of times all objects were hidden from the collector, as the collector counts."""
    done: list[None] = []
    monkeypatch.setattr(gc, "freeze", lambda: done.append(None))
    monkeypatch.setattr(gc, "get_freeze_count", lambda: len(done))
    return done


def read_nothing() -> None:
    options = ReadOptions(servers=("localhost:9000",), topic="orders")
    assert list(read_ranges(LogRanges("", (), {}), options, pa.schema([]))) == []


def test_what_a_worker_imported_is_hidden_from_the_collector_once(freezes, monkeypatch):
    monkeypatch.setattr(TaskContext, "_taskContext", object())

    read_nothing()
    read_nothing()

    assert len(freezes) == 1


def test_a_reader_outside_of_a_task_leaves_the_collector_alone(freezes):
    read_nothing()

    assert freezes == []
