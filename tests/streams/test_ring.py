"""A ring against a list that forgets nothing."""

from hypothesis import given
from hypothesis import strategies as st

from waterclock.streams.ring import Item, Ring

sizes = st.integers(0, 5)
steps = st.lists(st.one_of(st.just("put"), sizes), max_size=40)


@given(sizes, steps, st.integers(1, 7))
def test_a_ring_holds_the_last_that_fit(size, steps, count):
    ring, first = Ring(size), 1
    sent: list[Item] = []
    for step in steps:
        if step == "put":
            item = Item(b"%d" % len(sent))
            sent.append(item)
            displaced = ring.put(item)
            gone = max(first, len(sent) - ring.size + 1)
            assert displaced == (sent[first - 1] if first < gone else None)
        else:
            dropped = ring.resize(step)
            gone = max(first, len(sent) - step + 1)
            assert dropped == sent[first - 1 : gone - 1]
        first = gone
        assert (ring.first, ring.end, len(ring)) == (first, len(sent), len(sent) - first + 1)
        for position in range(first, len(sent) + 1):
            assert ring.get(position) is sent[position - 1]
            assert ring.read(position, count) == sent[position - 1 : position - 1 + count]
        assert ring.read(len(sent) + 1, count) == []


def test_an_item_knows_about_what_it_takes():
    assert Item(b"12345", "ab").size_bytes == 207
