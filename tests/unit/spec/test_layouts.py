"""Sizes and layouts that can be, and those that cannot."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octad.errors import ConfigError
from octad.spec.layouts import Layout, check_cards


@pytest.mark.parametrize("cards", [1, 2, 3, 7, 8, 16, 24, 1024])
def test_sizes_that_fit_a_node_or_fill_nodes(cards: int) -> None:
    assert check_cards(cards) == cards


@pytest.mark.parametrize(
    ("cards", "hint"), [(0, "1 to 8"), (-1, "1 to 8"), (9, "8 or 16"), (1032, "1024")]
)
def test_other_sizes_are_refused_with_the_nearest(cards: int, hint: str) -> None:
    with pytest.raises(ConfigError, match=hint) as caught:
        check_cards(cards, "pretrain.cards")
    assert caught.value.where == "pretrain.cards"


def test_fill_takes_what_is_left() -> None:
    assert Layout(tp=2).resolved(8).dp_shard == 4
    assert Layout(tp=2, dp_replicate=2).resolved(8).data_parallel == 4


def test_a_layout_that_does_not_divide_names_both_numbers() -> None:
    with pytest.raises(ConfigError, match=r"tp 3 = 3 does not divide 4 cards.*1, 2, 4"):
        Layout(tp=3).resolved(4)
    with pytest.raises(ConfigError, match=r"= 2, but the stage has 4 cards"):
        Layout(dp_shard=2).resolved(4)


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 4), st.integers(1, 64))
def test_a_resolved_layout_uses_every_card(pp: int, replicate: int, tp: int, cards: int) -> None:
    layout = Layout(pp=pp, dp_replicate=replicate, tp=tp)
    if cards % (pp * replicate * tp):
        with pytest.raises(ConfigError):
            layout.resolved(cards)
        return
    full = layout.resolved(cards)
    assert full.pp * full.data_parallel * full.tp == full.cards == cards
    assert full.resolved(cards) == full
