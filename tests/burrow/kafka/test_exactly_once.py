"""A topic copied by processes that are killed has each message once; 100,000 of them are a command:
`python -m tests.burrow.chaos.exactly_once`."""

from tests.burrow.chaos.exactly_once import Copying

MESSAGES = 8_000


def test_a_copy_under_kills_has_each_message_once(broker, tmp_path):
    copying = Copying(broker, tmp_path, messages=MESSAGES, seed=1, is_plain=False)

    copied = copying.run(kills=2)

    assert (copied.missing, copied.repeated) == (0, 0)
    assert copied.committed == copied.messages
    assert copied.zombies_fenced == 1
    assert copied.written > copied.committed, "no kill hit a transaction"


def test_without_transactions_a_copy_has_messages_twice(broker, tmp_path):
    copying = Copying(broker, tmp_path, messages=MESSAGES, seed=1, is_plain=True)

    assert copying.run(kills=2).repeated > 0
