"""Settings a Kafka source refuses, by name, before anything is connected."""

import pytest

from tests.burrow.memory_source import MemoryBroker, MemorySource
from waterclock.burrow.kafka.source import NEEDED, KafkaSource
from waterclock.burrow.kafka.transactions import KafkaTransactions
from waterclock.burrow.runtime.source import SourceFailed
from waterclock.model.errors import BadConfig


@pytest.mark.parametrize("topics", [[], "orders"])
def test_topics_are_a_list_with_something_in_it(topics):
    with pytest.raises(BadConfig, match="topics"):
        KafkaSource(NEEDED, topics)


@pytest.mark.parametrize("name", ["group.id", "bootstrap.servers"])
def test_what_has_no_default_is_named_at_once(name):
    given = {key: value for key, value in NEEDED.items() if key != name}

    for settings in (given, {**given, name: ""}):
        with pytest.raises(BadConfig, match=rf"{name}: is missing in the settings: such as '"):
            KafkaSource(settings, ["orders"])
    with pytest.raises(BadConfig, match=name):
        KafkaTransactions(given, ["orders"], transactional_id="x")


def test_another_name_of_librdkafka_for_the_broker_will_do():
    KafkaSource({"metadata.broker.list": "localhost:9092", "group.id": "g"}, ["orders"])


def test_a_client_that_commits_by_itself_is_refused():
    with pytest.raises(BadConfig, match=r"enable\.auto\.commit"):
        KafkaSource({**NEEDED, "enable.auto.commit": True}, ["orders"])


async def test_settings_librdkafka_does_not_know_end_the_pool_with_its_words():
    source = KafkaSource({**NEEDED, "no.such.setting": 1}, ["orders"])
    with pytest.raises(SourceFailed, match=r"no\.such\.setting"):
        await source.open(MemorySource(MemoryBroker()))  # type: ignore[arg-type]
    await source.close()


def test_transactions_refuse_protocols_that_move_single_partitions():
    with pytest.raises(BadConfig, match="eager"):
        KafkaTransactions(
            {**NEEDED, "partition.assignment.strategy": "cooperative-sticky"},
            ["t"],
            transactional_id="x",
        )
    with pytest.raises(BadConfig, match="classic"):
        KafkaTransactions({**NEEDED, "group.protocol": "consumer"}, ["t"], transactional_id="x")
