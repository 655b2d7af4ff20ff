"""The wheel holds what a user needs and nothing else; the sdist holds what it takes to build it."""

import tarfile
import zipfile

import pytest

from tests.docs.environment import sdist, wheel

TOP = {"waterclock", "pyspark_waterclock"}
"""What the wheel adds to an environment. Demos and the kit of the tests are not among it."""


@pytest.fixture(scope="module")
def wheel_names(tmp_path_factory):
    with zipfile.ZipFile(wheel(tmp_path_factory.mktemp("wheel"))) as file:
        return [name for name in file.namelist() if ".dist-info/" not in name]


@pytest.fixture(scope="module")
def sdist_names(tmp_path_factory):
    with tarfile.open(sdist(tmp_path_factory.mktemp("sdist"))) as file:
        return [name.partition("/")[2] for name in file.getnames()]


def test_the_wheel_holds_the_packages_and_no_demos_or_tests(wheel_names):
    assert {name.partition("/")[0] for name in wheel_names} == TOP
    assert not [name for name in wheel_names if "testing" in name or "demo" in name]
    assert "waterclock/py.typed" in wheel_names
    assert "waterclock/spark/session/log4j2.properties" in wheel_names
    assert [name for name in wheel_names if name.endswith(".lua")]


@pytest.mark.parametrize("folder", ["benchmarks", "demos", "docs", "examples", "src", "tests"])
def test_the_sdist_holds_every_folder(sdist_names, folder):
    assert [name for name in sdist_names if name.startswith(f"{folder}/")]


def test_the_sdist_holds_what_the_generated_code_is_made_from(sdist_names):
    assert [n for n in sdist_names if n.startswith("proto/waterclock/v1/") and n.endswith(".proto")]
