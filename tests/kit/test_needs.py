import pytest

from tests.kit import needs


def test_a_test_needs_what_its_fixtures_its_place_and_its_name_need():
    of = needs.needs_of

    assert of("tests/node/test_node.py::test_a", ["tmp_path"]) == set()
    assert of("tests/spark/test_options.py::test_a", []) == set()
    assert of("tests/spark/test_sql.py::test_a", ["spark", "node"]) == {"spark"}
    assert of("tests/server/test_app.py::test_a", ["server"]) == set()
    assert of("tests/dispatch/test_worker.py::test_a", ["server"]) == {"redis"}
    assert of("tests/stores/test_paging.py::test_a[mysql]", []) == {"databases"}
    assert of("tests/stores/test_paging.py::test_a[sqlite]", []) == set()
    assert of("tests/simulation/test_b.py::test_a_planted_bug_is_found[x]", []) == {"plants"}


def test_a_test_without_its_marker_gets_no_server():
    needs.allow({"kafka"})
    needs.claim("kafka")
    with pytest.raises(AssertionError, match="needs redis has no such marker"):
        needs.claim("redis")


def test_what_no_marker_is_for_cannot_be_claimed():
    with pytest.raises(AssertionError, match="elephants"):
        needs.claim("elephants")


def test_every_rule_gives_markers_there_are():
    given = set().union(*needs.BY_FIXTURE.values(), *needs.BY_PLACE.values())

    assert given == set(needs.NEEDS)
