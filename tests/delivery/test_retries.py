import pytest
from hypothesis import given
from hypothesis import strategies as st

from waterclock.delivery.retries import retry_delay_ms
from waterclock.model.errors import BadConfig
from waterclock.model.sections import DeliveryConfig, GroupConfig

CONFIG = DeliveryConfig()


@given(st.integers(0, 1 << 62), st.integers(1, 11))
def test_a_wait_doubles_up_to_its_limit_and_a_fifth_more(offset, failed):
    base_ms = min(1_000 * 2 ** (failed - 1), CONFIG.retry_delay_ms_max)

    delay_ms = retry_delay_ms(CONFIG, offset=offset, failed=failed)

    assert base_ms <= delay_ms <= base_ms * 6 // 5
    assert delay_ms == retry_delay_ms(CONFIG, offset=offset, failed=failed)


def test_messages_that_fail_together_do_not_come_back_together():
    delays = [retry_delay_ms(CONFIG, offset=offset, failed=1) for offset in range(1_000)]

    assert len(set(delays)) > 180
    assert 1_090 < sum(delays) / len(delays) < 1_110


@pytest.mark.parametrize(
    ("field", "value", "name"),
    [
        ("max_retries", 0, "delivery.max_retries"),
        ("max_retries", 11, "delivery.max_retries"),
        ("retry_delay_ms", 99, "delivery.retry_delay"),
        ("retry_delay_ms", 10_001, "delivery.retry_delay"),
        ("retry_delay_ms_max", 500, "delivery.retry_delay_max"),
        ("unacked_max", 0, "delivery.unacked_max"),
    ],
)
def test_a_setting_out_of_range_is_named(field, value, name):
    with pytest.raises(BadConfig, match=name):
        DeliveryConfig(**{field: value})


def test_group_settings_are_checked():
    with pytest.raises(BadConfig, match=r"groups\.members_max"):
        GroupConfig(members_max=0)
