"""A lease says whether the node wants its partition back."""

from tests.client.deliveries import revoked
from tests.client.test_session import said, session


def test_a_lease_says_that_it_was_revoked_also_if_everything_was_handed_out():
    at = session()
    delivery = at.next_delivery()
    assert delivery is not None
    assert not delivery.lease.is_revoked
    messages = list(delivery.messages())

    at.handle(revoked())

    assert delivery.lease.is_revoked
    assert not delivery.lease.is_void
    assert said(at) == []
    assert all(message.ack() for message in messages)


def test_a_lease_that_stays_after_all_is_not_revoked():
    at = session()
    delivery = at.next_delivery()
    assert delivery is not None
    at.handle(revoked())

    at.handle(revoked(is_cancelled=True))

    assert not delivery.lease.is_revoked


def test_a_partition_that_nobody_has_is_revoked_in_vain():
    at = session()
    at.handle(revoked(partition=7))

    assert said(at) == []
