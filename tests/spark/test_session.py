"""Starting Spark: Java found or told of in a line, settings as they should be, and sooner twice."""

import os
import stat
from pathlib import Path

import pytest
from pyspark.conf import SparkConf
from pyspark.core.context import SparkContext

from waterclock.model.errors import BadConfig, Unreachable
from waterclock.spark.session import builder as sessions
from waterclock.spark.session import jvm_cache as quickstart
from waterclock.spark.session.gateway import start_gateway
from waterclock.spark.session.java import Java, find_java, major_of


def jdk(folder, version, *, has_release=True):
    """Plant a Java: an executable that tells its version, and the file that does."""
    command = folder / "bin" / "java"
    command.parent.mkdir(parents=True)
    command.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    command.chmod(command.stat().st_mode | stat.S_IXUSR)
    if has_release:
        (folder / "release").write_text(f'IMPLEMENTOR="X"\nJAVA_VERSION="{version}"\n')
    return command


def test_java_is_found_by_its_home_and_else_on_the_path(tmp_path):
    home = jdk(tmp_path / "home", "21.0.1")
    other = jdk(tmp_path / "other", "17.0.2", has_release=False)
    path = f"{other.parent}:{os.environ['PATH']}"

    assert find_java({"JAVA_HOME": str(tmp_path / "home"), "PATH": path}) == Java(home, "21.0.1")
    assert find_java({"PATH": path}) == Java(other, "17.0.2")


def test_a_java_that_is_missing_or_old_is_told_in_a_line(tmp_path):
    jdk(tmp_path / "old", "11.0.2")
    jdk(tmp_path / "odd", "strange", has_release=False)

    for environment, said in [
        ({"JAVA_HOME": "/nowhere"}, "JAVA_HOME is /nowhere, where there is no java"),
        ({"PATH": str(tmp_path)}, "there is no java"),
        ({"JAVA_HOME": str(tmp_path / "old")}, "is Java 11.0.2"),
        ({"JAVA_HOME": str(tmp_path / "odd")}, "is Java strange"),
    ]:
        with pytest.raises(BadConfig, match=said) as caught:
            find_java(environment)
        assert "\n" not in str(caught.value)
        assert "install one" in str(caught.value)


@pytest.mark.parametrize(
    ("version", "major"), [("1.8.0_392", 8), ("17.0.15", 17), ("21", 21), ("x", 0), ("25-ea", 25)]
)
def test_the_number_of_a_java_is_the_one_people_know(version, major):
    assert major_of(version) == major


@pytest.fixture
def package(tmp_path):
    """Plant what pip installs of pyspark."""
    site = tmp_path / "site"
    for name in ("pyspark/bin", "pyspark/jars", "pyspark/python/lib", "py4j"):
        (site / name).mkdir(parents=True)
    for name in ("pyspark.zip", "py4j-0.10-src.zip", "other.zip"):
        (site / "pyspark/python/lib" / name).write_text("zip")
    return site / "pyspark"


def test_the_home_has_folders_where_spark_has_zips(tmp_path, package):
    home = quickstart.spark_home(tmp_path / "cache", package)

    assert home is not None
    assert (home / "jars").resolve() == package / "jars"
    lib = home / "python" / "lib"
    assert (lib / "pyspark.zip" / "pyspark").resolve() == package
    assert (lib / "py4j-0.10-src.zip" / "py4j").resolve() == package.parent / "py4j"
    assert (lib / "other.zip").read_text() == "zip"
    assert quickstart.spark_home(tmp_path / "cache", package) == home
    assert [each.name for each in (tmp_path / "cache").iterdir()] == [home.name]


def test_a_cache_that_cannot_be_written_makes_no_home_and_fails_nothing(tmp_path, package):
    (tmp_path / "cache").write_text("a file, not a folder")
    java = Java(Path("/java"), "17")

    assert quickstart.spark_home(tmp_path / "cache", package) is None
    assert quickstart.class_options(tmp_path / "cache", tmp_path, java)[0].startswith(
        "-XX:ArchiveClassesAtExit="
    )


def test_an_archive_is_used_once_it_is_whole(tmp_path):
    java = Java(Path("/java"), "17")
    (shown, _) = quickstart.class_options(tmp_path, tmp_path / "home", java)
    written = Path(shown.removeprefix("-XX:ArchiveClassesAtExit="))

    written.write_bytes(bytes(100))  # its JVM was killed: no magic number
    assert quickstart.class_options(tmp_path, tmp_path / "home", java)[0] == shown
    assert not written.exists()
    with written.open("wb") as file:  # its JVM is still at it
        file.write(quickstart.MAGIC.to_bytes(4, "little"))
        file.flush()
        assert quickstart.class_options(tmp_path, tmp_path / "home", java) == []
    whole = written.with_suffix("")
    used = quickstart.class_options(tmp_path, tmp_path / "home", java)
    assert used[0] == f"-XX:SharedArchiveFile={whole}"
    assert [each.name for each in tmp_path.iterdir()] == [whole.name]


def test_a_local_master_tries_tasks_again():
    assert sessions._retrying("local") == "local[1,3]"
    assert sessions._retrying("local[*]") == "local[*,3]"
    assert sessions._retrying("local[4,1]") == "local[4,1]"
    assert sessions._retrying("spark://host:7077") == "spark://host:7077"
    assert (sessions._cores("local"), sessions._cores("local[3,2]")) == (1, 3)


def test_a_connect_server_that_is_not_there_is_told_at_once():
    with pytest.raises(
        Unreachable, match=r"no Spark Connect server answers at sc://127\.0\.0\.1:1"
    ):
        sessions.session(master="sc://127.0.0.1:1")


def test_the_session_is_set_up_for_us_and_leaves_no_trace_in_the_environment(spark):
    assert spark.sparkContext.master == "local[2,3]"
    settings = dict(spark.sparkContext.getConf().getAll())
    for name, value in sessions.STEADY.items():
        assert settings[name] == value
    assert settings["spark.sql.shuffle.partitions"] == "2"
    assert settings["spark.ui.enabled"] == "false"
    assert "SPARK_LOCAL_IP" not in os.environ
    assert sessions.session() is spark


def test_a_short_session_plans_each_query_once_unless_the_user_wants_it_otherwise(monkeypatch):
    name, found = "spark.sql.adaptive.enabled", []

    def refusing(conf: SparkConf, log: object) -> None:
        found.append(conf.get(name))
        raise Unreachable("no JVM here")

    monkeypatch.setattr(sessions, "start_gateway", refusing)
    monkeypatch.setattr(SparkContext, "_gateway", None)
    for is_short, given in ((True, {}), (True, {name: "true"}), (False, {})):
        with pytest.raises(Unreachable):
            sessions._started("local[1]", "app", given, None, is_short=is_short)

    assert found == ["false", "true", None]


@pytest.fixture
def ended_submit(tmp_path, monkeypatch):
    """Plant a Spark whose JVM ends at once."""
    submit = tmp_path / "bin" / "spark-submit"
    submit.parent.mkdir()
    submit.write_text("#!/bin/sh\necho no memory >&2\nexit 3\n")
    submit.chmod(submit.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))


@pytest.mark.usefixtures("ended_submit")
def test_a_jvm_that_ends_at_once_is_told_in_a_line_and_its_words_are_kept(tmp_path):
    log = tmp_path / "log"
    with log.open("wb") as file, pytest.raises(Unreachable, match=r"ended with 3") as caught:
        start_gateway(SparkConf(loadDefaults=False), file)

    assert "\n" not in str(caught.value)
    assert log.read_text() == "no memory\n"
    assert "PYSPARK_GATEWAY_PORT" not in os.environ


@pytest.mark.usefixtures("ended_submit")
def test_no_hook_of_a_fork_runs_between_us_and_the_jvm():
    # gRPC has such hooks, and they ended the child of a busy process before it was a JVM.
    hooks_run = []
    os.register_at_fork(before=lambda: hooks_run.append("before"))

    with pytest.raises(Unreachable):
        start_gateway(SparkConf(loadDefaults=False), None)

    assert hooks_run == []
