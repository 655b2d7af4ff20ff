"""When a stream is split, and when it shrinks."""

from waterclock.cluster.hot_streams.scaler import Scaler, ScalerConfig

CONFIG = ScalerConfig(rate=100, up_window_ms=5_000, down_window_ms=20_000, cool_down_ms=5_000)


class Measured:
    """A scaler that is told of a rate each second."""

    def __init__(self, *, most=8):
        self.now_ms = 0
        self.scaler = Scaler(CONFIG, 0)
        self.count = 1
        self.most = most

    def run(self, seconds, rate):
        """Return the counts that there were, without repeats."""
        counts = [self.count]
        for _ in range(seconds):
            self.now_ms += 1_000
            self.scaler.note(self.now_ms, rate)
            self.count = self.scaler.count(self.now_ms, self.count, most=self.most)
            if self.count != counts[-1]:
                counts.append(self.count)
        return counts


def test_a_stream_within_its_rate_has_one_partition():
    assert Measured().run(120, 100) == [1]


def test_a_stream_grows_by_no_more_than_twice_at_a_time():
    assert Measured().run(60, 750) == [1, 2, 4, 8]


def test_a_burst_shorter_than_the_window_changes_nothing():
    measured = Measured()
    measured.run(20, 10)

    assert measured.run(2, 200) == [1]
    assert measured.run(60, 10) == [1]


def test_a_stream_grows_to_what_there_is_room_for():
    assert Measured(most=3).run(60, 10_000) == [1, 2, 3]


def test_a_stream_shrinks_one_by_one_when_it_is_used_far_less():
    measured = Measured()
    measured.run(60, 350)

    assert measured.count == 4
    assert measured.run(300, 50) == [4, 3, 2, 1]


def test_between_the_bounds_nothing_changes():
    measured = Measured()
    measured.run(60, 350)

    # Three would be used by 83 %, four are by 62 %.
    assert measured.run(600, 250) == [4]


def test_fewer_nodes_have_fewer_partitions_at_once():
    measured = Measured()
    measured.run(60, 350)
    measured.most = 2

    assert measured.run(1, 350) == [4, 2]


def test_a_pinned_stream_is_whole_at_once_and_for_a_while():
    measured = Measured()
    measured.run(60, 350)
    measured.scaler.pin(measured.now_ms)

    assert measured.run(CONFIG.pin_ms // 1_000 - 1, 350) == [4, 1]
    assert measured.run(60, 350) == [1, 2, 4]


def test_the_signal_says_how_many_partitions_the_rate_would_fill():
    measured = Measured(most=2)
    measured.run(60, 750)

    assert measured.scaler.signal(measured.now_ms) == 7.5
