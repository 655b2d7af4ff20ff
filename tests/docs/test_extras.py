"""The wheel alone: whoever needs an extra is told which, by every way in."""

import subprocess

import pytest

from tests.docs.environment import environment


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    """Return the programs of an environment that has the wheel without any extra."""
    return environment(tmp_path_factory.mktemp("bare"), is_bare=True)


def said(words, folder):
    run = subprocess.run(words, capture_output=True, text=True, check=False, cwd=folder)
    assert run.returncode != 0
    return run.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("extra", "program"),
    [
        ("kafka", "from waterclock.burrow import KafkaSource"),
        ("kafka", "from waterclock.burrow import KafkaDeadLetters"),
        ("spark", "from waterclock.spark.session import session"),
        ("spark", "from waterclock.spark.source import register"),
        ("redis", "from waterclock.dispatch import PermanentError"),
    ],
)
def test_a_program_is_told_which_extra_it_needs(programs, tmp_path, extra, program):
    line = said([programs / "python", "-c", program], tmp_path)

    assert line.startswith("ModuleNotFoundError: ")
    assert line.endswith(f" is not installed: pip install 'waterclock[{extra}]'")


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ("redis", ["dispatch"]),
        ("redis", ["worker"]),
        ("otel", ["up", "--set", "tracing.enabled=true"]),
        ("postgres", ["up", "--set", "streams.store=postgresql://localhost/x"]),
    ],
)
def test_a_command_is_told_which_extra_it_needs(programs, tmp_path, extra, words):
    line = said([programs / "waterclock", *words], tmp_path)

    assert line.startswith("error: ")
    assert line.endswith(f"pip install 'waterclock[{extra}]'")


def test_parallel_consumers_of_our_topics_need_no_extra(programs):
    program = "from waterclock.burrow import Pool, WaterclockSource"

    subprocess.run([programs / "python", "-c", program], check=True)
