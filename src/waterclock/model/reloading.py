"""Which settings a node takes up while it runs, and what becomes of a configuration read again.

The others are built into what was opened or agreed with them (ports, files, sessions): a node
goes on with those it has, and says by name which wait for its next start.
"""

from dataclasses import replace
from typing import Any, NamedTuple

from waterclock.model.config import SETTINGS, Config

RELOADABLE = (
    "cluster.bootstrap_nodes",
    "cluster.zone",
    "log.level",
    "log.format",
    "retention.age",
    "retention.bytes",
    "retention.wait_for_groups",
    "topics.auto_create",
    "topics.partitions",
    "topics.topics_max",
    "topics.partitions_max",
    "groups.expire",
    "groups.expire_unused",
    "groups.groups_max",
    "server.calls_max",
    "server.drain",
    "server.metrics_groups_max",
)


class Reloaded(NamedTuple):
    """A configuration read again, as far as a running node can follow."""

    config: Config
    changed: tuple[str, ...]
    """The settings that are others from now on."""
    needs_restart: tuple[str, ...]
    """Those that were changed as well, and stay as they were."""


def reloaded(old: Config, new: Config) -> Reloaded:
    """Return the old configuration with what can be taken up of the new one."""
    config, changed, needs_restart = old, [], []
    for path, setting in SETTINGS.items():
        section, name = path.partition(".")[0], setting.attribute
        value: Any = getattr(getattr(new, section), name)
        if value == getattr(getattr(old, section), name):
            continue
        if path in RELOADABLE and not _begins_or_ends_cluster(path, old, new):
            changed.append(path)
            part: Any = getattr(config, section)
            config = replace(config, **{section: replace(part, **{name: value})})
        else:
            needs_restart.append(path)
    return Reloaded(config, tuple(changed), tuple(needs_restart))


def _begins_or_ends_cluster(path: str, old: Config, new: Config) -> bool:
    """A node that is alone has nothing running that could join others, nor the other way round."""
    is_same = old.cluster.is_clustered == new.cluster.is_clustered
    return path == "cluster.bootstrap_nodes" and not is_same
