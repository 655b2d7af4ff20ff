"""A short run of the crash matrix, as `make test` can afford it; `make crash N=50` runs longer."""

from tests.integration.crash_matrix import Matrix, run_matrix

SEED = 17


def test_a_node_killed_and_stopped_under_load_keeps_every_guarantee(tmp_path):
    matrix = Matrix(tmp_path, SEED, rounds=5, round_s_max=2.5)
    run_matrix(matrix)

    history = matrix.history
    assert not history.findings, str(history.findings)
    assert len(history.runs) >= 6
    # It was a load worth the name.
    assert history.counts["messages"] > 300
    assert history.counts["cancelled"] > 5
    assert history.repeats.total() > 5
