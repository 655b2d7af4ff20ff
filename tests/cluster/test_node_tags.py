"""What nodes say of themselves, and what is said by members that are no nodes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waterclock.cluster.node_tags import LEAVING, NodeTags, decode_tags

TAGS = NodeTags("shop", "http://10.0.0.1:8080", "10.0.0.1", 7947, 200, "east")


@pytest.mark.parametrize(
    "tags",
    [
        TAGS,
        TAGS._replace(peer_host="fd00::1", zone=""),
        TAGS._replace(state=LEAVING),
        TAGS._replace(grpc_port=9000),
    ],
)
def test_tags_are_read_as_they_were_said(tags):
    assert decode_tags(tags.encode()) == tags


def test_a_node_of_a_later_release_may_say_more():
    assert decode_tags(TAGS.encode() | {"wc": "2", "colour": "blue"}) == TAGS._replace(level=2)


@pytest.mark.parametrize(
    ("http", "port", "address"),
    [
        ("http://10.0.0.1:8080", 9000, "10.0.0.1:9000"),
        ("https://mq-1.example.com:8080", 9000, "mq-1.example.com:9000"),
        ("http://[fd00::1]:8080", 9000, "[fd00::1]:9000"),
        ("http://10.0.0.1:8080", 0, ""),
        ("", 9000, ""),
    ],
)
def test_grpc_is_at_the_host_of_http(http, port, address):
    assert TAGS._replace(http=http, grpc_port=port).grpc == address


@pytest.mark.parametrize("port", ["", "0", "x", "65536", "123456", "-1", "٣"])
def test_a_port_that_is_none_is_as_if_it_were_not_told(port):
    assert decode_tags(TAGS.encode() | {"grpc": port}) == TAGS


@pytest.mark.parametrize(
    "changed",
    [
        {"wc": ""},
        {"wc": "one"},
        {"wc": "1" * 5_000},
        {"peer": "10.0.0.1"},
        {"peer": ":7947"},
        {"peer": "10.0.0.1:0"},
        {"peer": "10.0.0.1:65536"},
        {"points": "-1"},
        {"points": "٣"},
    ],
)
def test_a_member_whose_tags_do_not_parse_is_no_node(changed):
    assert decode_tags(TAGS.encode() | changed) is None


@pytest.mark.parametrize("missing", ["wc", "cluster", "http", "peer", "points", "state"])
def test_a_member_that_lacks_a_tag_is_no_node(missing):
    tags = TAGS.encode()
    del tags[missing]

    assert decode_tags(tags) is None


@given(st.dictionaries(st.sampled_from(["wc", "cluster", "http", "peer", "points"]), st.text()))
def test_any_tags_are_those_of_a_node_or_of_none(tags):
    assert decode_tags({"state": "up", **tags}) is None or tags.keys() >= {"wc", "peer"}


def test_who_can_share_no_streams_is_told_why():
    assert TAGS.why_apart(TAGS._replace(zone="west", level=2)) == ""
    assert TAGS.why_apart(TAGS._replace(cluster="test")) == (
        "it is of cluster 'test', and this node of 'shop'"
    )
    assert TAGS.why_apart(TAGS._replace(points=100)) == (
        "hash_ring.virtual_nodes is 100 there and 200 here"
    )
