"""What holds for a topic: its own word, else that of its node."""

from dataclasses import replace

import pytest

from waterclock.model.config import Config
from waterclock.model.sections import ClusterConfig, RetentionConfig, TopicsConfig
from waterclock.model.topics.effective_settings import effective_settings
from waterclock.model.views import TopicSettings

ALONE = Config(
    retention=RetentionConfig(age_ms=60_000, bytes=1 << 20),
    topics=TopicsConfig(replication_factor=5),
)
REPLICATED = replace(ALONE, cluster=ClusterConfig(etcd=("http://localhost:2379",)))


@pytest.mark.parametrize(
    ("own", "retention_ms", "retention_bytes"), [(None, 60_000, 1 << 20), (0, 0, 0), (9, 9, 9)]
)
def test_no_bound_of_its_own_is_another_thing_than_no_word(own, retention_ms, retention_bytes):
    found = effective_settings(TopicSettings(retention_ms=own, retention_bytes=own), ALONE)

    assert (found.retention_ms, found.retention_bytes) == (retention_ms, retention_bytes)


@pytest.mark.parametrize(
    ("config", "own", "factor"),
    [(ALONE, None, 1), (ALONE, 3, 1), (REPLICATED, None, 5), (REPLICATED, 3, 3)],
)
def test_only_nodes_that_replicate_have_several_copies(config, own, factor):
    found = effective_settings(TopicSettings(replication_factor=own), config)

    assert found.replication_factor == factor
