"""Keys and records are read as they were written; what is not ours is one error."""

import json
from contextlib import suppress

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from waterclock.cluster.coordinator.errors import BadRecord
from waterclock.cluster.coordinator.records import (
    ClusterRecord,
    DrainRecord,
    Keys,
    LockRecord,
    MoveRecord,
    NodeRecord,
    PartitionRecord,
    decode_record,
    encode_record,
)
from waterclock.model.errors import BadInput

KEY = b"waterclock/c/somewhere"
NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)
COUNTS = st.integers(0, (1 << 63) - 1)
LOG_IDS = st.binary(min_size=16, max_size=16)
KINDS = [ClusterRecord, NodeRecord, PartitionRecord, DrainRecord, MoveRecord, LockRecord]


@st.composite
def partitions(draw: st.DrawFn) -> PartitionRecord:
    names = draw(st.lists(NAMES, min_size=1, max_size=8, unique=True))
    replicas, learners = tuple(names[:5]), tuple(names[5:])
    state = draw(st.sampled_from(["vacant", "candidate", "leading"]))
    if state == "vacant":
        return PartitionRecord(epoch=0, state="vacant", replicas=replicas, learners=learners)
    return PartitionRecord(
        epoch=draw(st.integers(1, 1 << 60)),
        state=state,  # type: ignore[arg-type]
        leader=draw(st.sampled_from(replicas)),
        replicas=replicas,
        learners=learners,
    )


RECORDS = (
    st.builds(ClusterRecord, cluster_id=NAMES, level=COUNTS, meta_log=NAMES)
    | st.builds(NodeRecord, peer=NAMES, gossip=NAMES, disk=NAMES, http=NAMES, level=COUNTS)
    | partitions()
    | st.builds(DrainRecord, since_ms=COUNTS, target=NAMES)
    | st.builds(MoveRecord, target=NAMES, source=NAMES, is_leader_only=st.booleans())
    | st.builds(LockRecord, holder=NAMES)
)


@given(RECORDS)
def test_a_record_is_read_as_it_was_written(record):
    assert decode_record(type(record), encode_record(record), key=KEY) == record


@given(RECORDS)
def test_a_field_that_a_later_release_adds_is_passed_over(record):
    fields = {**json.loads(encode_record(record)), "later": [1, {"x": None}]}

    assert decode_record(type(record), json.dumps(fields).encode(), key=KEY) == record


@given(RECORDS)
def test_a_record_of_a_later_version_is_refused(record):
    fields = {**json.loads(encode_record(record)), "v": 2}

    with pytest.raises(BadRecord, match="is of version 2"):
        decode_record(type(record), json.dumps(fields).encode(), key=KEY)


@given(st.sampled_from(KINDS), st.binary(max_size=60) | RECORDS.map(encode_record), st.data())
def test_any_bytes_are_a_record_or_one_error(kind, value, data):
    at = data.draw(st.integers(0, len(value)))
    harmed = value[:at] + data.draw(st.binary(max_size=2)) + value[at + 1 :]

    with suppress(BadRecord):
        decode_record(kind, harmed, key=KEY)


@pytest.mark.parametrize(
    "fields",
    [
        {"epoch": 0, "leader": "a"},
        {"epoch": 3, "state": "vacant"},
        {"epoch": -1},
        {"leader": "c"},
        {"leader": ""},
        {"replicas": ["a", "a"]},
        {"replicas": []},
        {"learners": ["a"]},
        {"learners": ["c", "c"]},
        {"leader": "c", "learners": ["c"]},
        {"replicas": ["a", "b", "c", "d", "e", "f"]},
        {"state": "asleep"},
    ],
)
def test_a_partition_that_contradicts_itself_is_refused(fields):
    whole = {"v": 1, "epoch": 3, "state": "leading", "leader": "a", "replicas": ["a", "b"]}
    decode_record(PartitionRecord, json.dumps(whole).encode(), key=KEY)

    with pytest.raises(BadRecord, match="waterclock/c/somewhere"):
        decode_record(PartitionRecord, json.dumps(whole | fields).encode(), key=KEY)


def test_a_replica_takes_over_one_epoch_later_and_then_leads():
    vacant = PartitionRecord(epoch=0, state="vacant", replicas=("a", "b", "c"))
    first = vacant.taken_over("b")

    assert first == msgspec.structs.replace(vacant, epoch=1, state="candidate", leader="b")
    assert first.led().state == "leading"
    assert first.led().taken_over("c").epoch == 2


def test_a_leader_that_resigned_can_lead_on_and_be_taken_over_from():
    led = PartitionRecord(epoch=3, state="leading", leader="a", replicas=("a", "b"))

    assert led.resigned() == msgspec.structs.replace(led, state="candidate")
    assert led.resigned().led() == led


def test_a_set_of_replicas_changes_by_one_that_learns_and_then_votes():
    led = PartitionRecord(epoch=3, state="leading", leader="a", replicas=("a", "b"))
    learning = led.with_learner("c")
    voting = learning.with_voter("c")

    assert (learning.replicas, learning.learners) == (("a", "b"), ("c",))
    assert (voting.replicas, voting.learners) == (("a", "b", "c"), ())
    assert voting.without("b").replicas == ("a", "c")
    assert learning.without("c") == led
    assert voting.with_demoted("b") == voting.without("b").with_learner("b")
    assert voting.preferring("c").replicas == ("c", "a", "b")


@given(st.text(st.characters(codec="utf-8", exclude_characters="/"), min_size=1), NAMES, LOG_IDS)
def test_keys_are_read_as_they_were_written(cluster, node_id, log_id):
    keys = Keys(cluster)
    node, partition = keys.node(node_id), keys.partition(log_id)
    drain, move = keys.drain(node_id), keys.move(log_id)

    assert keys.node_of(node) == keys.node_of(drain) == node_id
    assert keys.log_of(partition) == keys.log_of(move) == log_id
    found = (node, partition, drain, move)
    ranges = (keys.nodes, keys.partitions, keys.drains, keys.moves)
    assert [[key in each for each in ranges] for key in found] == [
        [index == own for index in range(4)] for own in range(4)
    ]
    assert all(each in keys.everything for each in (*found, keys.cluster, keys.lock))
    assert not {keys.cluster, keys.lock} & {*found}


@given(NAMES, NAMES, NAMES)
def test_clusters_that_share_an_etcd_have_no_key_in_common(one, other, node_id):
    one, other = one.replace("/", "-"), other.replace("/", "-")

    assert (Keys(one).node(node_id) in Keys(other).everything) == (one == other)


@pytest.mark.parametrize("name", ["", "a/b"])
def test_a_name_that_makes_no_key_is_refused(name):
    with pytest.raises(BadInput):
        Keys(name)


@given(st.binary(max_size=40))
def test_a_key_that_is_not_ours_is_one_error(rest):
    keys = Keys("c")
    below = (keys.nodes, keys.partitions, keys.drains, keys.moves)
    for key in (rest, *(each.start + rest for each in below)):
        with suppress(BadRecord):
            assert key in (keys.node(keys.node_of(key)), keys.drain(keys.node_of(key)))
        with suppress(BadRecord):
            assert key in (keys.partition(keys.log_of(key)), keys.move(keys.log_of(key)))


def test_records_are_written_as_the_page_shows_them():
    record = PartitionRecord(
        epoch=7,
        state="leading",
        leader="n2:5b09",
        replicas=("n1:77f0", "n2:5b09"),
        learners=("n3:c1d2",),
    )
    assert encode_record(record) == (
        b'{"epoch":7,"state":"leading","leader":"n2:5b09","replicas":["n1:77f0","n2:5b09"],'
        b'"learners":["n3:c1d2"],"v":1}'
    )
    assert Keys("prod").partition(bytes(range(16))) == (
        b"waterclock/prod/partitions/000102030405060708090a0b0c0d0e0f"
    )
