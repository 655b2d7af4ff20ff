"""A few rounds of backups under load with a kill, as `make test` can afford them; `make
backup-chaos` plays more."""

import pytest

from tests.backup.rounds import play

SEEDS = (1, 2)


@pytest.mark.parametrize("seed", SEEDS)
def test_what_was_acknowledged_before_a_backup_is_restored_from_it(tmp_path, seed):
    verdict = play(tmp_path, seed)

    assert not verdict.findings, str(verdict.findings)
    # It was a load worth the name.
    assert verdict.counts["backups"] >= 2
    assert verdict.counts["segments kept"] > 0
    assert verdict.counts["messages"] >= 60
