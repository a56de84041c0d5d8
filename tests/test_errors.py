"""How messages name many things."""

import pytest

from crsbench.errors import listed


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        ([], ""),
        ([7], "7"),
        (["a", "b", "c"], "a, b, c"),
        (["a", "b", "c", "d"], "a, b, c and 1 more"),
        (range(100), "0, 1, 2 and 97 more"),
    ],
)
def test_the_first_few_are_named_and_the_rest_counted(items, expected):
    assert listed(items, 3) == expected


def test_items_with_commas_can_be_kept_apart():
    assert listed(["a, b", "c", "d"], 2, between="; ") == "a, b; c; and 1 more"
