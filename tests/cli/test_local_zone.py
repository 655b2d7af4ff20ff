"""A time that somebody types is meant where they are."""

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


def test_a_zone_without_a_name_is_asked_for_only_if_it_matters(monkeypatch):
    monkeypatch.setenv("TZ", "CET-1CEST")

    assert here("+5m") == "+5m"
    with pytest.raises(BadInput, match="'18:00 Europe/Berlin'"):
        here("18:00")
