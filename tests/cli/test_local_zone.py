"""A time that somebody types is meant where they are."""

import time

import pytest

from waterclock.cli import local_zone
from waterclock.cli.local_zone import here
from waterclock.model.errors import BadInput


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("18:00", "18:00 [Europe/Berlin]"),
        ("tomorrow 9:00", "tomorrow 9:00 [Europe/Berlin]"),
        ("every day at 9:00", "every day at 9:00 [Europe/Berlin]"),
        ("18:00 America/New_York", "18:00 America/New_York"),
        ("18:00 [CET]", "18:00 [CET]"),
        ("18:00 UTC", "18:00 UTC"),
        ("+5m", "+5m"),
        ("5m", "5m"),
        ("every 90s", "every 90s"),
        ("2026-12-24T18:00:00Z", "2026-12-24T18:00:00Z"),
        ("2026-12-24 18:00+01:00", "2026-12-24 18:00+01:00"),
        ("2026-12-24 18:00", "2026-12-24 18:00 [Europe/Berlin]"),
        ("@at 2026-12-24T18:00", "@at 2026-12-24T18:00 [Europe/Berlin]"),
        ("0 9 * * MON/2", "0 9 * * MON/2 [Europe/Berlin]"),
        ("in 5 minutes", "in 5 minutes"),
        ("1h ago", "1h ago"),
        ("-1h", "-1h"),
        ("earliest", "earliest"),
        ("latest", "latest"),
    ],
)
def test_a_time_of_day_is_in_the_zone_of_the_machine_unless_it_names_one(monkeypatch, text, meant):
    monkeypatch.setenv("TZ", "Europe/Berlin")

    assert here(text) == meant


@pytest.mark.parametrize(
    ("name", "zone"),
    [
        ("Asia/Tokyo", "Asia/Tokyo"),
        (":Asia/Tokyo", "Asia/Tokyo"),
        (":/usr/share/zoneinfo/Asia/Tokyo", "Asia/Tokyo"),
        ("", "UTC"),
        ("Etc/UTC", "UTC"),
    ],
)
def test_the_zone_is_that_of_the_environment(monkeypatch, name, zone):
    monkeypatch.setenv("TZ", name)

    assert local_zone.local_zone() == zone


def test_the_zone_is_that_of_the_system_if_the_environment_names_none(monkeypatch, tmp_path):
    monkeypatch.delenv("TZ", raising=False)
    monkeypatch.setattr(local_zone, "LOCALTIME", tmp_path / "localtime")
    monkeypatch.setattr(local_zone, "TIMEZONE", tmp_path / "timezone")

    assert local_zone.local_zone() == "UTC"
    (tmp_path / "timezone").write_text("Asia/Tokyo\n")
    assert local_zone.local_zone() == "Asia/Tokyo"
    (tmp_path / "localtime").symlink_to("/usr/share/zoneinfo/Europe/Berlin")
    assert local_zone.local_zone() == "Europe/Berlin"


def test_a_path_in_the_environment_is_followed_to_its_zone(monkeypatch, tmp_path):
    monkeypatch.setattr(local_zone, "LOCALTIME", tmp_path / "localtime")
    (tmp_path / "localtime").symlink_to("/usr/share/zoneinfo/Europe/Berlin")
    (tmp_path / "other").symlink_to("/usr/share/zoneinfo/Asia/Tokyo")

    for name, zone in (("localtime", "Europe/Berlin"), ("other", "Asia/Tokyo")):
        for colon in ("", ":"):
            monkeypatch.setenv("TZ", f"{colon}{tmp_path / name}")
            assert local_zone.local_zone() == zone


@pytest.fixture
def in_zone(monkeypatch):
    """Let the C library be in a zone too; it looks at TZ only when it is told to."""
    with monkeypatch.context() as patch:

        def enter(name: str) -> None:
            patch.setenv("TZ", name)
            time.tzset()

        yield enter
    time.tzset()


@pytest.mark.parametrize("name", ["CET-1CEST", "<+0545>-5:45"])
def test_a_zone_without_a_name_is_asked_for_only_if_it_matters(in_zone, name):
    in_zone(name)

    for text in ("+5m", "5m", "2026-12-24T18:00:00Z", "18:00 Asia/Tokyo", "every 90s"):
        assert here(text) == text
    with pytest.raises(BadInput, match="'18:00 Europe/Berlin'"):
        here("18:00")


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("<+03>-3", "18:00 [Etc/GMT-3]"),
        ("XYZ5", "18:00 [Etc/GMT+5]"),
        ("ABC0", "18:00"),
        ("EST5EDT", "18:00 [EST5EDT]"),
    ],
)
def test_a_zone_without_a_name_will_do_if_its_clocks_never_change(in_zone, name, meant):
    in_zone(name)

    assert here("18:00") == meant
