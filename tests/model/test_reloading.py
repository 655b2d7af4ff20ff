"""What a running node takes up of settings that were changed, and what waits for a restart."""

from dataclasses import replace
from pathlib import Path

from waterclock.model.config import SETTINGS, Config
from waterclock.model.reloading import RELOADABLE, reloaded
from waterclock.model.sections import (
    ClusterConfig,
    GroupConfig,
    LogConfig,
    ServerConfig,
    TopicsConfig,
)

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"


def test_what_can_change_is_taken_and_the_rest_is_named():
    old = Config()
    new = Config(
        log=LogConfig(level="info", segment_bytes=1 << 20),
        topics=TopicsConfig(topics_max=7),
        server=ServerConfig(drain_ms=1, linger_ms=9),
    )

    found = reloaded(old, new)

    assert found.changed == ("log.level", "topics.topics_max", "server.drain")
    assert found.needs_restart == ("log.segment_bytes", "server.linger")
    assert found.config == replace(
        old,
        log=LogConfig(level="info"),
        topics=TopicsConfig(topics_max=7),
        server=ServerConfig(drain_ms=1),
    )


def test_other_seeds_are_taken_but_a_node_that_is_alone_must_restart_to_join_others():
    alone, one, two = (
        Config(cluster=ClusterConfig(bootstrap_nodes=seeds)) for seeds in ((), ("a:1",), ("b:1",))
    )

    assert reloaded(one, two) == (two, ("cluster.bootstrap_nodes",), ())
    assert reloaded(alone, one) == (alone, (), ("cluster.bootstrap_nodes",))
    assert reloaded(one, alone) == (one, (), ("cluster.bootstrap_nodes",))


def test_nothing_new_is_nothing_changed():
    config = Config(groups=GroupConfig(expire_ms=None))

    assert reloaded(config, replace(config)) == (config, (), ())


def test_what_can_be_reloaded_are_settings_and_the_page_lists_them():
    text = PAGE.read_text()
    listed = text[text.index("## Reading it again") :]

    assert set(RELOADABLE) <= set(SETTINGS)
    assert [path for path in SETTINGS if f"`{path}`" in listed] == [
        path for path in SETTINGS if path in RELOADABLE
    ]
