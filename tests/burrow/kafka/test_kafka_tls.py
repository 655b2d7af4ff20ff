"""Kafka by TLS: the CA that is named is trusted, and another is refused, which the log says."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.peers.cache import Absent
from benchmarks.peers.kafka import CONFIG
from benchmarks.peers.server import free_port
from tests.burrow import source_contract as contract
from tests.burrow.kafka import kafka_broker
from tests.burrow.kafka.test_kafka_source import KafkaBench
from tests.dispatch.certificates import Files, certificates
from tests.stores.servers.registry import reason_to_skip

PLAIN = "PLAINTEXT://127.0.0.1:{port}"


class TlsBroker:
    """A broker that also listens by TLS, and the settings of who comes that way."""

    def __init__(self, broker: kafka_broker.KafkaBroker, port: int, files: Files) -> None:
        self.create, self.publish = broker.create, broker.publish
        self.settings = {
            "bootstrap.servers": f"127.0.0.1:{port}",
            "security.protocol": "ssl",
            "ssl.ca.location": str(files.ca),
        }


@pytest.fixture(scope="module")
def tls_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsBroker]:
    folder, port = tmp_path_factory.mktemp("kafka-tls"), free_port()
    files, pair = certificates(folder / "files"), folder / "pair.pem"
    pair.write_bytes(files.key.read_bytes() + files.certificate.read_bytes())
    shown = f"""
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SSL:SSL,CONTROLLER:PLAINTEXT
ssl.keystore.type=PEM
ssl.keystore.location={pair}
"""
    config = CONFIG.replace(PLAIN, f"{PLAIN},SSL://127.0.0.1:{port}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kafka_broker, "CONFIG", config)
        patch.setattr(kafka_broker, "MORE", kafka_broker.MORE + shown)
        try:
            with kafka_broker.running(folder / "broker") as broker:
                yield TlsBroker(broker, port, files)
        except Absent as absent:
            pytest.skip(reason_to_skip("maven", absent))


async def test_a_broker_of_the_ca_that_is_named_is_consumed_by_tls(tls_broker, topic) -> None:
    bench = KafkaBench(tls_broker, topic, {})
    await contract.everything_is_done_once_and_a_key_in_its_order(bench)


async def test_a_broker_of_another_ca_is_refused_and_the_log_says_so(
    tls_broker: TlsBroker, topic: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = certificates(tmp_path / "others")
    bench = KafkaBench(tls_broker, topic, {"ssl.ca.location": str(other.ca), "log_level": 0})
    async with asyncio.timeout(60), contract.pool_of(bench, contract.Seen().process):
        while "certificate verify failed" not in caplog.text:  # noqa: ASYNC110 - it is on a thread
            await asyncio.sleep(0.01)
    # It is told as an error of SSL or of the connection, whichever librdkafka notices first.
    (said, *_) = (line for line in caplog.messages if "certificate verify failed" in line)
    assert said.startswith("kafka_error code=")
