"""Reading the configuration of a running node again."""

import logging
from dataclasses import replace

import pytest

from tests.server.http_client import raw_client
from tests.server.served import config_in, running_server
from waterclock.model.config import Config
from waterclock.model.errors import BadConfig, CapacityReached
from waterclock.model.sections import LogConfig, ServerConfig, TopicsConfig
from waterclock.model.views import TopicSettings
from waterclock.node.node import running_node
from waterclock.runtime.clock import SystemClock
from waterclock.server.app import serve
from waterclock.server.reload import Reloader


def test_those_who_joined_are_called_each_time(caplog):
    caplog.set_level(logging.INFO)
    old, new = Config(), Config(topics=TopicsConfig(topics_max=7))
    read = [new, new]
    seen: list[Config] = []
    reloader = Reloader(old, read.pop)
    reloader.on_reloaded.append(seen.append)

    assert reloader.reload().changed == ("topics.topics_max",)
    assert reloader.reload().changed == ()
    assert seen == [new, new]
    assert (reloader.reloads, reloader.failures) == (2, 0)
    assert [each.message for each in caplog.records] == [
        "reloaded changed=topics.topics_max",
        "reloaded changed=nothing",
    ]


def test_what_needs_a_restart_is_logged_by_name(caplog):
    reloader = Reloader(Config(), lambda: Config(log=LogConfig(fsync="always")))

    assert reloader.reload().config == Config()
    assert "reload_needs_restart settings=log.fsync" in caplog.text


def test_a_bad_file_is_one_line_and_changes_nothing(caplog):
    def reread() -> Config:
        raise BadConfig("log.level", "expected debug or info or warning or error, got 'loud'")

    reloader = Reloader(Config(), reread)
    reloader.on_reloaded.append(lambda _: pytest.fail("nobody is called"))
    reloader.hung_up()

    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert record.message.startswith("reload_failed error=configuration log.level: expected debug")
    assert reloader.config == Config()
    assert (reloader.reloads, reloader.failures) == (0, 1)


async def test_a_node_goes_by_its_new_settings_at_once(tmp_path):
    async with running_server(tmp_path) as it:
        config = config_in(
            tmp_path,
            topics=TopicsConfig(topics_max=1),
            server=ServerConfig(calls_max=17),
            groups=replace(Config().groups, groups_max=1),
        )
        it.node.configure(config)
        it.server.configure(config)

        await it.node.topics.create("one", TopicSettings(partitions=1))
        with pytest.raises(CapacityReached, match="topics_max"):
            await it.node.topics.create("two", TopicSettings(partitions=1))
        await it.node.groups.open_session("one", "g")
        with pytest.raises(CapacityReached, match="groups_max"):
            await it.node.groups.open_session("one", "h")
        assert it.server.calls.calls_max == 17


async def test_a_node_is_told_over_http_to_read_its_settings_again(tmp_path):
    new = config_in(
        tmp_path, topics=TopicsConfig(topics_max=1), server=ServerConfig(linger_ms=9, calls_max=17)
    )
    old = config_in(tmp_path)
    reloader = Reloader(old, lambda: new)
    async with (
        running_node(old, SystemClock()) as node,
        serve(node, old, reloader) as server,
        raw_client(server.http_port) as client,
    ):
        reloader.on_reloaded += [node.configure, server.configure]
        answer = await client.post("/node/reload", {})
        again = await client.post("/node/reload", {})

        assert (answer.status, answer.json()) == (
            200,
            {
                "changed": ["topics.topics_max", "server.calls_max"],
                "needsRestart": ["server.linger"],
            },
        )
        assert again.json()["changed"] == []
        assert server.calls.calls_max == 17

        def reread() -> Config:
            raise BadConfig("log.level", "is loud")

        reloader._reread = reread
        refused = await client.post("/node/reload", {})
        assert (refused.status, refused.json()["field"]) == (400, "log.level")
        assert node.config.topics.topics_max == 1
