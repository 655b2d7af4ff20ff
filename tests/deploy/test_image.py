"""The image of deploy/Dockerfile, its steps run, and a node in it: read-only, and nobody's root."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.deploy.container import ROOT, Container, Image, container, volume
from tests.deploy.dockerfile import context, parse

DATA = "/var/lib/waterclock"


@pytest.fixture(scope="module")
def final():
    return parse((ROOT / "deploy" / "Dockerfile").read_text())[-1]


@contextmanager
def idle(image: Image, folder: Path) -> Iterator[Container]:
    """Have a container in which nothing runs."""
    binds = {volume(image, DATA, folder / "data"): DATA}
    wait = ["sh", "-c", "echo there; exec sleep 300"]
    with container(image, folder / "idle", entrypoint=wait, binds=binds) as it:
        assert it.stdout.readline() == "there\n"
        yield it


def test_a_node_starts_answers_takes_a_message_and_stops(image, tmp_path):
    binds = {volume(image, DATA, tmp_path / "data"): DATA}
    health = image.stage.last("HEALTHCHECK").words()
    with container(image, tmp_path / "node", binds=binds) as it:
        said = it.ready()
        healthy = it.run(*health)
        published = it.run("waterclock", "publish", "orders", "hello")
        it.process.send_signal(getattr(signal, image.stage.last("STOPSIGNAL").text))

        assert it.process.wait() == 0
        assert said["data_folder"] == f"{DATA}/data"
        assert (healthy.returncode, healthy.stdout) == (0, '{"status":"ready","problems":[]}\n')
        assert published.returncode == 0, published.stderr


def test_a_program_in_it_has_no_powers_and_writes_to_its_volume_only(image, tmp_path):
    with idle(image, tmp_path) as it:
        asked = it.run("sh", "-c", "id -u; grep Cap /proc/self/status; stat -c %a:%u .")
        places = ["/opt/waterclock", "/etc", "/var", "/run/waterclock"]
        refused = [it.run("touch", f"{place}/new").returncode for place in places]
        allowed = [it.run("touch", f"{place}/new").returncode for place in (DATA, "/tmp")]

    user, *capabilities, data = asked.stdout.splitlines()
    assert (user, data) == ("10001", "750:10001")
    assert {line.split()[1] for line in capabilities} == {"0" * 16}
    assert refused == [1, 1, 1, 1]
    assert allowed == [0, 0]


def test_health_says_why_there_is_none(image, tmp_path):
    with idle(image, tmp_path) as it:
        asked = it.run(*image.stage.last("HEALTHCHECK").words())

    assert asked.returncode == 1
    assert asked.stdout.startswith("http://127.0.0.1:8080/health/ready: ")
    assert "Connection refused" in asked.stdout


def test_the_image_says_what_docker_needs_to_know(final):
    assert final.last("USER").text == "10001:10001"
    assert final.last("VOLUME").text == DATA
    assert final.last("EXPOSE").text == "7946 7946/udp 7947 8080 9000"
    assert final.last("STOPSIGNAL").text == "SIGTERM"
    assert final.last("ENTRYPOINT").words() == ["waterclock"]
    labels = final.last("LABEL").pairs()
    assert labels["org.opencontainers.image.licenses"] == "Apache-2.0"
    assert {"title", "version", "revision"} <= {name.rpartition(".")[2] for name in labels}


def test_a_build_is_given_no_more_than_it_copies(final):
    given = context(ROOT)

    assert {name.split("/")[0] for name in given} == {
        "LICENSE", "README.md", "deploy", "pyproject.toml", "requirements-node.lock",
        "requirements.lock", "src",
    }  # fmt: skip
    assert [name for name in given if name.startswith("deploy/")] == ["deploy/health.py"]
    assert [name for name in given if "__pycache__" in name] == []


def test_an_instruction_that_nobody_runs_is_refused():
    with pytest.raises(ValueError, match="ADD is not understood"):
        parse("FROM x\nADD y /y\n")
