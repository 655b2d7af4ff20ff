from itertools import permutations

from hypothesis import given
from hypothesis import strategies as st

from waterclock.delivery.assignment import assign

names = st.sampled_from("abcdef")


def moves_least(members, owners):
    """Try every way to deal the larger shares: how many partitions must move at least?"""
    least, larger = divmod(len(owners), len(members))
    shares = [least + 1] * larger + [least] * (len(members) - larger)
    kept = max(
        sum(min(owners.count(m), share) for m, share in zip(order, shares, strict=True))
        for order in permutations(members)
    )
    return len(owners) - kept


@given(st.lists(names, unique=True, min_size=1, max_size=5), st.lists(st.none() | names))
def test_assignment_is_balanced_and_moves_the_least(members, owners):
    result = assign(members, owners)

    counts = [result.count(member) for member in members]
    assert sum(counts) == len(owners)
    assert max(counts) - min(counts) <= 1
    moved = sum(old != new for old, new in zip(owners, result, strict=True))
    assert moved == moves_least(members, owners)
    assert assign(members[::-1], result) == result


def test_without_members_nobody_owns_anything():
    assert assign([], ["a", None]) == [None, None]


def test_a_joining_member_takes_from_those_with_most():
    assert assign("abc", ["a", "a", "a", "b", "b", "b"]) == ["a", "a", "c", "b", "b", "c"]
