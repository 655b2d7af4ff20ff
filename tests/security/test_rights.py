"""Rights: default deny, globs, groups, and what a list shows."""

import re
from typing import get_args

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from waterclock.model.errors import BadInput
from waterclock.security.rights import (
    ANSWERS_MAX,
    KINDS,
    OPEN,
    Glob,
    Needs,
    Right,
    Rights,
    What,
    parse_rights,
    tenant_rights,
)

names = st.text("ab._", min_size=1, max_size=8) | st.text("a_", max_size=3).map("__{}".format)
globs = st.text("ab._*", min_size=1, max_size=8) | st.sampled_from(["*", "__*", "_*"])
resources = st.sampled_from(get_args(What))
kinds = st.sampled_from(KINDS)


@st.composite
def any_right(draw: st.DrawFn) -> Right:
    kind = draw(kinds.filter(lambda kind: kind != "admin"))
    what = draw(resources)
    has_group = kind == "consume" and what != "stream"
    return Right(kind, what, draw(globs), draw(globs) if has_group else "*")


def is_like(glob: str, name: str) -> bool:
    """Match as a person would explain it: a star is anything."""
    return re.fullmatch(glob.replace(".", r"\.").replace("*", ".*"), name, re.DOTALL) is not None


def covers(right: Right, kind: str, what: str, name: str, group: str | None) -> bool:
    """The model: one right, one named thing."""
    is_own = what == "topic" and name.startswith("__") and not right.glob.startswith("__")
    in_group = right.group_glob == "*" if group is None else is_like(right.group_glob, group)
    is_group = in_group or what == "stream"
    return (
        right.kind == kind
        and right.what in (what, "any")
        and is_like(right.glob, name)
        and is_group
        and not is_own
    )


@given(globs, names)
@example("a*a", "a")
@example("*a*a*", "ba_a")
@example("a*ab*b", "aab")
def test_a_glob_matches_what_a_naive_one_does(glob, name):
    assert Glob(glob).matches(name) == is_like(glob, name)


def test_a_hostile_name_is_matched_in_no_time():
    assert not Glob("*a" * 200 + "*b*").matches("a" * 100_000)


@given(st.lists(any_right(), max_size=5), kinds, st.data())
def test_rights_allow_what_one_of_them_covers(rights, kind, data):
    what, name = data.draw(st.sampled_from(["topic", "stream"])), data.draw(names)
    group = data.draw(st.none() | names)
    asked = Rights(rights)

    expected = any(covers(right, kind, what, name, group) for right in rights)

    resource = {what: name}
    assert asked.allows(kind, **resource, group=group) == expected
    assert asked.allows(kind, **resource, group=group) == expected, "when it is remembered"
    assert Rights([*rights, Right("admin", "any", "*")]).allows(kind, **resource, group=group)


@given(st.lists(any_right(), max_size=5), st.sampled_from(["topic", "stream"]), names)
def test_a_list_shows_a_thing_if_there_is_some_right_on_it(rights, what, name):
    expected = any(covers(right._replace(group_glob="*"), right.kind, what, name, None)
                   for right in rights)  # fmt: skip

    assert Rights(rights).sees(**{what: name}) == expected


@given(st.lists(any_right(), max_size=5), names, names)
def test_a_list_shows_a_group_to_readers_of_its_topic_and_to_its_members(rights, topic, group):
    expected = any(covers(right, kind, "topic", topic, group)
                   for right in rights for kind in ("read", "consume"))  # fmt: skip

    assert Rights(rights).sees(topic=topic, group=group) == expected


def test_nothing_is_allowed_by_default():
    for kind in KINDS:
        assert not Rights().allows(kind)
        assert not Rights().allows(kind, topic="orders")
    assert not Rights().sees(topic="orders")


@pytest.mark.parametrize("text", ["orders", "topic:*", "stream:*", "*:billing"])
def test_a_question_about_nothing_in_particular_needs_a_right_to_everything(text):
    assert not parse_rights({"consume": [text]}).allows("consume")
    assert parse_rights({"consume": ["*"]}).allows("consume")


def test_consuming_in_no_particular_group_needs_a_right_to_all_groups():
    rights = parse_rights({"consume": ["orders:billing"]})

    assert rights.allows("consume", topic="orders", group="billing")
    assert not rights.allows("consume", topic="orders", group="other")
    assert not rights.allows("consume", topic="orders")


def test_the_nodes_own_topics_need_a_glob_that_names_them():
    everything = parse_rights({"read": ["*"]})

    assert not everything.allows("read", topic="__audit")
    assert everything.allows("read", stream="__audit"), "streams have any names"
    assert parse_rights({"read": ["__audit"]}).allows("read", topic="__audit")
    assert parse_rights({"admin": ["*"]}).allows("read", topic="__audit")


def test_a_tenant_has_what_begins_with_its_name():
    acme = tenant_rights("acme")

    for kind in ("publish", "schedule", "read"):
        assert acme.allows(kind, topic="acme.orders")
        assert acme.allows(kind, stream="acme.chat")
    assert acme.allows("consume", stream="acme.chat")
    assert acme.allows("consume", topic="acme.orders", group="acme.billing")
    assert not acme.allows("consume", topic="acme.orders", group="billing")
    for topic in ("acme", "acmeorders", "other.acme.orders", "__audit"):
        assert not acme.allows("read", topic=topic)
    assert not acme.is_admin


@given(any_right())
def test_parsing_undoes_writing(right):
    assert Right.parse(right.kind, right.text) == right


@pytest.mark.parametrize(
    ("kind", "text", "right"),
    [
        ("publish", "orders.*", Right("publish", "any", "orders.*")),
        ("publish", "topic:orders", Right("publish", "topic", "orders")),
        ("consume", "orders.*:billing", Right("consume", "any", "orders.*", "billing")),
        ("consume", "topic:o:b-*", Right("consume", "topic", "o", "b-*")),
        ("consume", "stream:chat:7 é", Right("consume", "stream", "chat:7 é")),
        ("admin", "*", Right("admin", "any", "*")),
    ],
)
def test_a_right_is_read_as_people_write_it(kind, text, right):
    assert Right.parse(kind, text) == right


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("publish", ""),
        ("publish", "topic:"),
        ("publish", "orders:billing"),
        ("publish", "or?ers"),
        ("publish", "[a-z]"),
        ("publish", "a b"),
        ("publish", "x" * 513),
        ("consume", "orders:"),
        ("consume", "orders:a:b"),
        ("consume", "stream:a\nb"),
        ("admin", "orders.*"),
    ],
)
def test_what_is_no_right_is_refused(kind, text):
    with pytest.raises(BadInput):
        Right.parse(kind, text)


@given(kinds, st.text(max_size=20))
def test_the_parser_raises_nothing_else(kind, text):
    try:
        right = Right.parse(kind, text)
    except BadInput:
        return
    assert Right.parse(kind, right.text) == right


def test_so_many_rights_are_refused():
    with pytest.raises(BadInput, match="at most 1000"):
        parse_rights({"read": [f"t{n}" for n in range(1_001)]})


def test_names_that_clients_invent_do_not_fill_the_memory():
    rights = parse_rights({"read": ["a*"]})
    for number in range(3 * ANSWERS_MAX):
        assert rights.allows("read", topic=f"a{number}")
        assert not rights.sees(topic=f"b{number}")

    assert len(rights._answers) <= ANSWERS_MAX


def test_an_operation_is_open_only_if_it_says_so():
    assert OPEN.is_open
    assert not Needs("publish", topic="topic").is_open
    assert not Needs("read", is_list=True).is_open
