"""Reading and writing as somebody: from the options to what tasks send, and nowhere to be seen."""

import pickle
from base64 import b64encode
from contextlib import closing

import pytest

from tests.client.secured import credential_of, secured_folder
from tests.spark.fake_http import answer, faking, frames
from waterclock.client.encryption import MAGIC, Keys
from waterclock.model.errors import BadInput, Forbidden
from waterclock.security.folder import SecureFolder
from waterclock.security.tls import server_context
from waterclock.spark.options import BadOption, ReadOptions
from waterclock.spark.read.fetcher import Fetcher
from waterclock.spark.read.http_node import HttpNode
from waterclock.spark.read.ranges import Range
from waterclock.spark.write.options import WriteOptions


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return secured_folder(tmp_path_factory.mktemp("spark") / "secure")


@pytest.fixture(autouse=True)
def _bare_environment(monkeypatch):
    monkeypatch.delenv("WATERCLOCK_ADDRESS", raising=False)
    monkeypatch.delenv("WATERCLOCK_CREDENTIAL", raising=False)


def tls_of(folder: SecureFolder):
    return server_context(folder.node_certificate, folder.node_key)


@pytest.mark.parametrize("kind", [ReadOptions, WriteOptions])
def test_a_credential_is_an_option_or_of_the_drivers_environment(folder, kind, monkeypatch):
    credential = credential_of(folder, "node-1:9000")
    given = kind.parse({"topic": "orders", "credential": credential.encode()})
    assert (given.servers, given.credential) == (("node-1:9000",), credential)

    elsewhere = {"servers": "node-2:9000", "credential": f"@{folder.admin_credential}"}
    assert kind.parse({"topic": "orders", **elsewhere}).servers == ("node-2:9000",)

    assert kind.parse({"topic": "orders"}).credential is None
    monkeypatch.setenv("WATERCLOCK_CREDENTIAL", credential.encode())
    given = kind.parse({"topic": "orders"})
    assert (given.servers, given.credential) == (("node-1:9000",), credential)


def test_options_travel_with_the_credential_and_do_not_show_it(folder):
    credential = credential_of(folder)
    options = ReadOptions.parse({"topic": "orders", "credential": credential.encode()})

    assert pickle.loads(pickle.dumps(options)) == options
    assert credential.token not in repr(options)


def test_keys_are_a_file_on_the_driver_and_travel_unseen(tmp_path):
    (tmp_path / "keys").write_text(b64encode(bytes(range(32))).decode())
    options = ReadOptions.parse({"topic": "orders", "keys": f"{tmp_path}/keys"})

    assert options.keys == Keys([bytes(range(32))])
    assert pickle.loads(pickle.dumps(options)) == options
    assert "x1f" not in repr(options)
    assert WriteOptions.parse({"topic": "orders", "keys": f"{tmp_path}/keys"}).keys == options.keys


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"keys": "/nowhere"}, "option keys: keys file '/nowhere': No such file"),
        ({"allowPlaintext": "true"}, "option allowPlaintext: goes with keys"),
        ({"keys": "KEYS", "view": "dlq"}, "option keys: view=dlq shows values as they are stored"),
    ],
)
def test_options_of_keys_that_make_no_sense_are_refused(tmp_path, given, problem):
    (tmp_path / "keys").write_text(b64encode(bytes(32)).decode())
    named = {name: text.replace("KEYS", f"{tmp_path}/keys") for name, text in given.items()}

    with pytest.raises(BadOption, match=problem):
        ReadOptions.parse({"topic": "orders", **named})


@pytest.mark.spark
def test_spark_writes_what_a_node_cannot_read_and_reads_it(spark, node, topic, tmp_path):
    (tmp_path / "keys").write_text(b64encode(bytes(range(32))).decode())
    named = {"servers": node.servers, "topic": topic}
    rows = spark.createDataFrame(
        [(b"ada", b"100 coins"), (b"bob", None)], "key binary, value binary"
    )
    writing = rows.write.format("waterclock").options(**named, createPartitions=2)
    writing.option("keys", f"{tmp_path}/keys").mode("append").save()

    reading = spark.read.format("waterclock").options(**named)
    stored = {row.key: row.value for row in reading.load().collect()}
    assert stored[b"bob"] is None
    assert stored[b"ada"].startswith(MAGIC)
    read = reading.option("keys", f"{tmp_path}/keys").load()
    assert {row.key: row.value for row in read.collect()} == {b"ada": b"100 coins", b"bob": None}
    assert [row.value for row in read.select("value").orderBy("value").collect()] == [
        None,
        b"100 coins",
    ]


def test_a_damaged_credential_is_refused_and_not_shown(folder):
    text = credential_of(folder).encode()[:-200]

    with pytest.raises(BadOption, match=r"^option credential: ") as refused:
        ReadOptions.parse({"topic": "orders", "credential": text})
    assert text[-50:] not in str(refused.value)


def test_frames_are_fetched_by_tls_with_the_token(folder):
    credential = credential_of(folder)
    with faking(frames(b"one", 5), frames(b"two", 10), tls=tls_of(folder)) as node:
        fetcher = Fetcher(
            node.address, "orders", Range(0, 0, 10), fetch_bytes=100, with_scheduled=False,
            retained=0, fail_on_data_loss=True, patience_s=5, credential=credential,
        )  # fmt: skip
        with fetcher as replies:
            assert [bytes(each) for each in replies] == [b"one", b"two"]

    assert node.heads.count(f"Authorization: Bearer {credential.token}".encode()) == 2


def test_a_fetcher_that_stops_in_the_middle_hangs_up(folder):
    with faking(frames(b"one", 5), None, tls=tls_of(folder)) as node:
        fetcher = Fetcher(
            node.address, "orders", Range(0, 0, 10), fetch_bytes=100, with_scheduled=False,
            retained=0, fail_on_data_loss=True, patience_s=60, credential=credential_of(folder),
        )  # fmt: skip
        with fetcher as replies:
            assert bytes(next(iter(replies))) == b"one"


def test_a_node_of_another_ca_is_not_asked(folder, tmp_path):
    foreign = credential_of(secured_folder(tmp_path / "secure"))
    with faking(answer(b"{}"), tls=tls_of(folder)) as fake:
        with (
            closing(HttpNode(fake.address, credential=foreign, patience_s=60)) as node,
            pytest.raises(BadInput, match="is not the one that the credential is for"),
        ):
            node.ends("orders")
        assert fake.asked == []


def test_what_is_forbidden_is_asked_once_and_says_what_to_do(folder):
    body = (
        b'{"error":"Forbidden","detail":"ada has no right to read topic orders",'
        b'"right":"read","principal":"ada"}'
    )
    said = answer(body, status="403 Forbidden")
    with faking(said, tls=tls_of(folder)) as fake:
        with (
            closing(HttpNode(fake.address, credential=credential_of(folder))) as node,
            pytest.raises(Forbidden, match="secure add ada --replace --read GLOB"),
        ):
            node.ends("orders")
        assert len(fake.asked) == 1


@pytest.mark.spark
def test_no_plan_and_no_setting_shows_the_credential(spark, folder):
    credential = credential_of(folder)
    rows = spark.read.format("waterclock").option("credential", credential.encode()).load("orders")

    plans = (
        rows._jdf.queryExecution().logical().toString()
        + rows._jdf.queryExecution().analyzed().toString()
    )
    assert "waterclock" in plans.lower()
    assert credential.token not in plans + repr(rows)
    redacted = spark.conf.get("spark.redaction.regex")
    assert "credential" in redacted
