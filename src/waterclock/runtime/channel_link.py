"""A connection that many share, by frames: what links of nodes and of clients have in common.

All that is said in one turn of the loop goes in one write, and nothing is written while the other
side does not read. Who has said nothing for a while says that it is there, and who hears nothing
for longer hangs up.
"""

import asyncio
from collections.abc import Callable

from waterclock.cluster.peer_link.channels import Channel, Channels
from waterclock.cluster.peer_link.frames import Kind, encode, encode_reason
from waterclock.runtime.link import Link

OnRequest = Callable[[Channel, int, bytes, bool], None]


class ChannelLink(Link):
    """One end of such a connection. Say with `_begin_beats` from when on there are heartbeats."""

    def __init__(self, on_request: OnRequest, *, is_dialler: bool) -> None:
        super().__init__()
        self.channels = Channels(
            is_dialler=is_dialler, on_request=on_request, on_output=self._write_soon
        )
        self._frames: list[bytes] = []
        """Said in this turn, beside what channels have to say."""
        self._is_writing_soon = False
        self._blocked_at: float | None = None
        self._is_reading = True
        """Else what the other side says is not heard, and it is not silent."""
        self._why = ""
        """Why it ended, or is to end."""
        self._timer: asyncio.TimerHandle | None = None
        self._heartbeat_s = self._silence_s = 0.0

    @property
    def is_blocked(self) -> bool:
        """The other side does not read."""
        return self._blocked_at is not None

    def close(self, why: str) -> None:
        """Say why, and end."""
        if self.is_open:
            self._why = self._why or why
            self.send(encode_reason(Kind.CLOSE, 0, why))
            self._hang_up()

    def _hang_up(self) -> None:
        """End, once what was said is sent."""
        assert self._transport is not None
        self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Beat no more."""
        if self._timer is not None:
            self._timer.cancel()

    # Writing

    def pause_writing(self) -> None:
        """Wait until the other side takes more."""
        self._blocked_at = self._loop.time()

    def resume_writing(self) -> None:
        """Write on."""
        self._blocked_at = None
        self._write()

    def _say(self, frame: bytes) -> None:
        """Say a frame of no channel, together with all else of this turn of the loop."""
        self._frames.append(frame)
        self._write_soon()

    def _write_soon(self) -> None:
        if not self._is_writing_soon:
            self._is_writing_soon = True
            self._loop.call_soon(self._write)

    def _write(self) -> None:
        self._is_writing_soon = False
        if self._frames and self._blocked_at is None:
            frames, self._frames = self._frames, []
            self.send(b"".join(frames))
        while self._blocked_at is None and (output := self.channels.output()):
            self.send(b"".join(output))

    # Time

    def _begin_beats(self, heartbeat_ms: int, silence_ms: int) -> None:
        """Be heard as often as the first says, and hang up if the other side is silent for the
        second."""
        self._heartbeat_s, self._silence_s = heartbeat_ms / 1_000, silence_ms / 1_000
        self._wait_for_beat()

    def _wait_for_beat(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(self._heartbeat_s / 2, self._beat)

    def _beat(self) -> None:
        """Say that we are here, and notice if the other side is not."""
        assert self._timer is not None
        time = self._loop.time()
        # Time in which this program did not run is no silence: what was said then is not read yet.
        self.heard_at += max(0.0, time - self._timer.when())
        if self._is_reading and time - self.heard_at >= self._silence_s:
            self._why = f"silent for {self._silence_s * 1_000:.0f} ms"
            self.abort()
        elif not self._ends_by_itself(time):
            if time - self.said_at >= self._heartbeat_s / 2:
                self.send(encode(Kind.HEARTBEAT))
            self._wait_for_beat()

    def _ends_by_itself(self, time: float) -> bool:
        """End if there is another reason than silence to do so now; return whether there is."""
        return False
