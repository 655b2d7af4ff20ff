"""The part of YAML we read, and the ways of refusing the rest."""

from contextlib import suppress

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from waterclock.model.errors import BadConfig
from waterclock.model.strict_yaml import DEPTH_MAX, TEXT_CHARS_MAX, read_yaml

names = st.text(st.characters(codec="utf-8", categories=["L", "N", "P"]), min_size=1, max_size=9)
plain = st.recursive(
    st.none() | names,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=9,
)
BOMB = "a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n"


def depth(node) -> int:
    children = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    return max((1 + depth(child) for child in children), default=0)


@given(plain.filter(lambda node: depth(node) <= DEPTH_MAX))
def test_mappings_lists_and_text_are_read_as_they_were_written(node):
    quoted = yaml.safe_dump(node, default_style='"', allow_unicode=True)
    untagged = quoted.replace('!!null "null"', "null")

    assert read_yaml(untagged) == node


@given(st.text() | st.text(alphabet="ab:-?[]{}&*!|>%@#'\"\\,~ \n\tUxFYAML019."))
@example('"\\UFFFFFFFF"')
@example('"\\U00110000"')
@example("%YAML " + "9" * 5_000 + ".1\n---\n")
@example("%TAG ! tag:%ff\n--- !x y")
@example("\ud800")
@example("\x00")
@example("\ufeffa: b")
def test_any_text_is_read_or_refused_with_bad_config(text):
    with suppress(BadConfig):
        read_yaml(text)


@pytest.mark.parametrize(
    ("text", "field", "problem"),
    [
        (BOMB, "b.[]", "is an alias, write the value out (line 2)"),
        ("a: &x 1\nb: *x", "b", "is an alias, write the value out (line 2)"),
        ("<<: *x", "<<", "is an alias, write the value out (line 1)"),
        ("log:\n  fsync: group\n  fsync: always", "log.fsync", "is given twice (line 3)"),
        ("a: !!python/object:os.system x", "a", "has a tag, remove it (line 1)"),
        ("a: !!int 3", "a", "has a tag, remove it (line 1)"),
        ("? [a, b]\n: c", "file", "has a key that is not text (line 1)"),
        ("a: {'x\\ny': 1}".replace("'", '"'), "a", "has a key that is no name (line 1)"),
        ("a: 1\n---\nb: 2", "file", "has a second document, only one is read (line 2)"),
        ("a: b: c", "file", "line 1: mapping values are not allowed here"),
        ("a: [b", "file", "line 1: expected ',' or ']', but got '<stream end>'"),
    ],
)
def test_a_refusal_says_where_and_why(text, field, problem):
    with pytest.raises(BadConfig) as caught:
        read_yaml(text)

    assert (caught.value.field, caught.value.problem) == (field, problem)


@pytest.mark.parametrize("text", ["[" * 60_000, "{a: " * 15_000, "- " * 30_000])
def test_deep_nesting_is_refused_before_it_costs_anything(text):
    with pytest.raises(BadConfig, match=f"is nested deeper than {DEPTH_MAX} levels"):
        read_yaml(text)


def test_a_long_file_is_refused_unread():
    with pytest.raises(BadConfig, match=f"at most {TEXT_CHARS_MAX} are read"):
        read_yaml("#" * (TEXT_CHARS_MAX + 1))


@pytest.mark.parametrize("text", ["no", "1.10", "2026-01-01", "0x10", "12:30:00", "on", "1e3"])
def test_scalars_stay_text(text):
    assert read_yaml(f"a: {text}") == {"a": text}


@pytest.mark.parametrize("text", ["", "~", "null"])
def test_unquoted_nothing_is_none_and_quoted_is_text(text):
    assert read_yaml(f"a: {text}") == {"a": None}
    assert read_yaml(f'a: "{text}"') == {"a": text}


@pytest.mark.parametrize("text", ["", "# only a comment\n", "---\n", "---\n...\n"])
def test_an_empty_file_is_none(text):
    assert read_yaml(text) is None
