"""What a broker's answer to a commit means."""

import pytest

from waterclock.burrow.core.commits import Meaning, meaning


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (0, Meaning.DONE),
        (12, Meaning.TOO_LARGE),
        (7, Meaning.AGAIN),  # REQUEST_TIMED_OUT
        (14, Meaning.AGAIN),  # COORDINATOR_LOAD_IN_PROGRESS
        (22, Meaning.AGAIN),  # ILLEGAL_GENERATION
        (25, Meaning.AGAIN),  # UNKNOWN_MEMBER_ID
        (27, Meaning.AGAIN),  # REBALANCE_IN_PROGRESS
        (-195, Meaning.AGAIN),  # _TRANSPORT
        (-168, Meaning.AGAIN),  # _NO_OFFSET
        (30, Meaning.FATAL),  # GROUP_AUTHORIZATION_FAILED
        (82, Meaning.FATAL),  # FENCED_INSTANCE_ID
        (-144, Meaning.FATAL),  # _FENCED
        (9_999, Meaning.AGAIN),
    ],
)
def test_a_code_has_one_meaning(code, expected):
    assert meaning(code) is expected


def test_the_codes_are_those_of_the_client():
    error = pytest.importorskip("confluent_kafka").KafkaError

    assert error.OFFSET_METADATA_TOO_LARGE == 12
    assert (error._FENCED, error._FATAL, error._AUTHENTICATION) == (-144, -150, -169)
    assert (error.FENCED_INSTANCE_ID, error.GROUP_AUTHORIZATION_FAILED) == (82, 30)
    assert (error._NO_OFFSET, error._TRANSPORT) == (-168, -195)
