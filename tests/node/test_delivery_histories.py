"""No history loses, repeats or misdirects a message, and planted bugs are found."""

import os

from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.node.delivery_history import DeliveryHistory

HISTORIES = int(os.environ.get("WATERCLOCK_DELIVERY_HISTORIES", "40"))


def test_no_history_breaks_a_promise():
    run_state_machine_as_test(
        DeliveryHistory,
        settings=settings(
            max_examples=HISTORIES,
            stateful_step_count=40,
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )
