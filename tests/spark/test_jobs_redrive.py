"""Redriving: picked, mended, sent back once, and off the list only when stored."""

from datetime import UTC, datetime, timedelta

import pytest

from waterclock.model.errors import BadInput
from waterclock.spark.jobs import redrive
from waterclock.spark.jobs.progress import SilentReporter
from waterclock.spark.jobs.redrive import RedriveOptions, change_of


@pytest.fixture
def run(spark, node, topic):
    """Return a function that redrives the test's topic, of which six messages have died."""
    node.client.topics.create(topic, partitions=1)
    node.client.topics.create(f"{topic}.dlq", partitions=1)
    node.fill(topic, 0, 6)
    node.fill(f"{topic}.dlq", 0, 6, headers=[death(number) for number in range(6)])

    def run_job(**options):
        shown = RedriveOptions(servers=node.servers, topic=topic, **options)
        return redrive.run(spark, shown, SilentReporter())

    return run_job


def death(number):
    """Return the headers of a dead letter: every other had no money."""
    shown = {
        "group": "billing", "reason": "no money" if number % 2 else "no address",
        "attempts": 3, "partition": 0, "offset": number,
        "dead-lettered-ms": 1_700_000_000_000 + number,
        "id": f"id-{number}",
    }  # fmt: skip
    return [(f"wc-dlq-{name}", str(value).encode()) for name, value in shown.items()]


def sent_back(node, topic):
    """Return the values behind the six that died."""
    return sorted(each.value for each in node.client.replay(topic, offset=6))


def test_picked_by_reason_and_mended_they_go_back_and_off_the_list(run, node, topic):
    change = "value = concat(cast(value as string), ', mended')"
    summary = run(reasons=["no m%"], changes=[change])

    assert sent_back(node, topic) == [b"value 1, mended", b"value 3, mended", b"value 5, mended"]
    assert (summary.rows, summary.facts["taken_off"]) == (3, 3)
    assert [each.reason for each in node.client.dead_letters.list(topic)] == ["no address"] * 3


def test_a_crash_before_the_dead_letters_are_taken_off_sends_none_twice(
    run, node, topic, monkeypatch
):
    def crash(picked, options):
        raise RuntimeError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(redrive, "_purge", crash)
        with pytest.raises(RuntimeError, match="killed"):
            run()
    stored = sent_back(node, topic)
    # Another pick of the same dead letters: another write, the same ids.
    run(reasons=["no money"], changes=["value = 'other'"])
    again = run()

    assert len(stored) == 6
    assert sent_back(node, topic) == stored
    assert again.facts["taken_off"] == 3
    assert node.client.dead_letters.count(topic) == 0


def test_new_times_are_spread_in_the_order_of_death(run, node, topic):
    before = datetime.now(UTC)
    run(due="+1h", spread="30m")

    dues = [each.due for each in node.client.scheduled(topic)]
    assert len(dues) == 6
    assert [later - dues[0] for later in dues] == [timedelta(minutes=5) * n for n in range(6)]
    assert timedelta(minutes=59) < dues[0] - before < timedelta(minutes=61)


def test_a_dry_run_shows_reasons_and_how_they_would_look(run, node, topic):
    summary = run(changes=["value = upper(cast(value as string))"], is_dry_run=True)

    assert summary.facts["reasons"] == {"no address": 3, "no money": 3}
    assert "VALUE 0" in {each["value"] for each in summary.facts["sample"]}
    assert sent_back(node, topic) == []
    assert node.client.dead_letters.count(topic) == 6


def test_copies_can_go_elsewhere_and_leave_the_dead_letters(run, node, topic):
    run(where="origin_offset < 2", to_topic=f"{topic}-copies", keeps_dead_letters=True, limit=1)

    assert [each.value for each in node.client.replay(f"{topic}-copies")] == [b"value 0"]
    assert node.client.dead_letters.count(topic) == 6


@pytest.mark.parametrize("text", ["value", "offset = 3", "value :=3", ""])
def test_a_change_that_is_none_is_refused(text):
    with pytest.raises(BadInput, match="--set"):
        change_of(text)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"changes": ["value = nothing"]}, "nothing"),
        ({"changes": ["due_time = 'soon'"]}, "not a timestamp"),
        ({"changes": ["headers = 1"]}, "not a map"),
        ({"changes": ["key = array(1)"]}, "not text or binary"),
        ({"where": "reasons = 1"}, "--where"),
        ({"due": "@every 1s"}, "--due: '@every 1s' is a rule"),
        ({"due": "+1s", "changes": ["due_time = now()"]}, "set twice"),
    ],
)
def test_a_wrong_expression_is_told_before_anything_is_sent(run, node, topic, options, said):
    with pytest.raises(BadInput, match=said) as caught:
        run(**options)

    assert "\n" not in str(caught.value)
    assert sent_back(node, topic) == []
