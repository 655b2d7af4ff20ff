"""Reading the configuration again while a node runs: at SIGHUP, as daemons do, or when asked.

The file, the environment and the flags are read as at the start. What is wrong with them is one
line in the log, and everything stays as it was. Whoever has settings that can change, or reads
files that can (certificates, principals), joins `on_reloaded`.
"""

import logging
from collections.abc import Callable

from waterclock.model.config import Config
from waterclock.model.errors import WaterclockError
from waterclock.model.reloading import Reloaded, reloaded
from waterclock.runtime.structured_log import begin_log

log = logging.getLogger(__name__)

Reread = Callable[[], Config]


class Reloader:
    """The configuration of a running node, and how it is read again."""

    def __init__(self, config: Config, reread: Reread | None = None) -> None:
        """Without `reread` the configuration stays; what else is read again is."""
        self.config = config
        self._reread = reread
        self.reloads = 0
        self.failures = 0
        self.on_reloaded: list[Callable[[Config], None]] = []
        """Called each time, with the configuration as it is then, also if no setting changed."""

    def reload(self) -> Reloaded:
        """Take up what has changed. Raises WaterclockError, and changes nothing, if the
        configuration cannot be read."""
        before = self.config
        try:
            found = reloaded(before, before if self._reread is None else self._reread())
        except WaterclockError:
            self.failures += 1
            raise
        self.reloads += 1
        self.config = found.config
        if found.config.log != before.log:
            begin_log(level=found.config.log.level, format=found.config.log.format)
        for callback in self.on_reloaded:
            callback(found.config)
        if found.needs_restart:
            log.warning("reload_needs_restart settings=%s", ",".join(found.needs_restart))
        log.info("reloaded changed=%s", ",".join(found.changed) or "nothing")
        return found

    def hung_up(self) -> None:
        """Reload at a signal: there is nobody to raise to."""
        try:
            self.reload()
        except WaterclockError as error:
            log.error("reload_failed error=%s: the settings stay as they were", error)
