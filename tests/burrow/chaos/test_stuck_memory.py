"""What an engine remembers of finished messages behind a stuck one: runs, and not messages."""

from tests.burrow.chaos.stuck import tracked_bytes


def test_memory_grows_with_the_holes_and_not_with_what_is_finished():
    few, many = tracked_bytes(5_000), tracked_bytes(50_000)
    holes = tracked_bytes(50_000, stuck_every=100)

    assert many < 2 * few
    assert holes > 2 * many
