"""The examples run, and print what they should."""

from pathlib import Path

import pytest

from tests.client.programs import outputs_beside_node

EXAMPLES = Path(__file__).parents[2] / "examples"

PRINTED = {
    "blocking_worker.py": """\
hello b'ada'
hello b'grace'
left over: 0
""",
    "bulk_load.py": """\
published: 100000
sum: 4999950000
""",
    "burrow_waterclock.py": """\
billed: 999 each customer in order: True
dead: b'777'
left over: 0
""",
    "llm_tokens.py": """\
57 tokens over 4 connections
each once, in order: True
""",
    "reminders.py": """\
moved: moved
cancelled: cancelled
planned: b'tea'
planned: b'stand-up'
repeats: 0 3 * * * Europe/Berlin
due now: b'tea' early: False
too late: already fired
""",
    "worker.py": """\
done: b'easy' at attempt 1
rejected: b'nonsense' nobody can do this
failed: b'flaky' try again
done: b'flaky' at attempt 2
dead: b'nonsense' rejected
""",
}
ARGUMENTS = {"llm_tokens.py": ["--headless"]}
RUN_ELSEWHERE = {
    "burrow_exactly_once.py": "tests/burrow/kafka/test_examples.py",
    "burrow_kafka.py": "tests/burrow/kafka/test_examples.py",
    "dispatch_handler.py": "tests/dispatch/test_cli.py",
    "dispatch_readings.py": "tests/dispatch/test_cli.py",
    "spark_tour.py": "tests/spark/test_tour.py",
}
"""They need more than a node."""


def test_every_example_is_run():
    assert {*PRINTED, *RUN_ELSEWHERE} == {file.name for file in EXAMPLES.glob("*.py")}
    for name, test in RUN_ELSEWHERE.items():
        assert name.removesuffix(".py") in (EXAMPLES.parent / test).read_text()


@pytest.mark.parametrize("name", sorted(PRINTED))
def test_an_example_prints_what_it_should_also_the_second_time(name, tmp_path):
    arguments = [str(EXAMPLES / name), *ARGUMENTS.get(name, [])]

    printed = outputs_beside_node(arguments, tmp_path, times=2)

    assert printed == [PRINTED[name]] * 2
