"""One stuck message: what is finished behind it survives a kill.

100,000 messages are a command: `python -m tests.burrow.chaos.stuck`."""

from tests.burrow.chaos.stuck import StuckRun

MESSAGES = 20_000
COMMIT_EVERY = 1_000
"""What a pool finishes between two commits, unless it is told otherwise."""


def test_finished_work_behind_a_stuck_message_survives_a_kill(broker, tmp_path):
    stuck = StuckRun(broker, tmp_path, messages=MESSAGES).run()

    assert stuck.missing == 0
    assert stuck.redone[0] <= 2 * COMMIT_EVERY
    assert stuck.redone[1] == 0
    assert stuck.lag_of_others == 0
    assert stuck.map_chars < 20
