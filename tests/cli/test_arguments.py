"""What people type becomes values, or one line that shows the right form."""

import pytest

from waterclock.cli.arguments import headers_of, ids_of, position_of, typed_bytes
from waterclock.cli.output.terminal import bytes_text
from waterclock.model.errors import BadInput
from waterclock.model.ids import Millis, uuid7


def test_headers_are_names_and_values():
    assert headers_of(["trace=a=b", "empty="]) == {"trace": b"a=b", "empty": b""}
    assert headers_of(None) is None


@pytest.mark.parametrize("text", ["trace", "=x", ""])
def test_a_header_without_a_name_or_a_value_is_refused(text):
    with pytest.raises(BadInput, match="name=value"):
        headers_of([text])


def test_bytes_that_are_no_text_arrive_as_they_were_typed():
    assert typed_bytes(b"\xff\xfe".decode(errors="surrogateescape")) == b"\xff\xfe"


@pytest.mark.parametrize("text", ["0/12", "0:12", " 0/12 "])
def test_a_position_is_a_partition_and_an_offset(text):
    assert position_of(text) == (0, 12)


@pytest.mark.parametrize("text", ["12", "a/b", "-1/3", "1/", "0/9223372036854775808", ""])
def test_what_is_no_position_is_refused(text):
    with pytest.raises(BadInput, match="as in 0/12"):
        position_of(text)


@pytest.mark.parametrize("message_id", [b"order-1", uuid7(Millis(7), bytes(10)), b"\xff\x00"])
def test_an_id_can_be_typed_as_listings_show_it(message_id):
    assert message_id in ids_of(bytes_text(message_id, chars_max=36))


def test_an_id_that_only_looks_like_ours_is_meant_as_typed_first():
    assert ids_of("0xab")[0] == b"0xab"
