"""Names never reach a shell, a path or an id in a form that could hurt."""

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octad.spec.names import NAME, checked_name, checked_title, new_run_id, submission_id


@pytest.mark.parametrize(
    "bad",
    ["", "A", "-a", "a/b", "../x", "a b", "a:b", "a" * 64, "a\x00", "pré", "a\n", "a;rm", "\uff41"],
)
def test_bad_names_are_refused_with_the_rule(bad: str) -> None:
    with pytest.raises(ValueError, match="1 to 63"):
        checked_name(bad)


@given(st.text(alphabet=string.ascii_lowercase + string.digits, min_size=1, max_size=63))
def test_plain_names_pass(name: str) -> None:
    assert checked_name(name) == name


@given(
    st.text(alphabet=string.ascii_lowercase + "-", min_size=1, max_size=63).filter(NAME.fullmatch)
)
def test_run_ids_are_names_and_do_not_repeat(pipeline: str) -> None:
    ids = {new_run_id(pipeline) for _ in range(20)}
    assert len(ids) == 20
    assert all(NAME.fullmatch(run) for run in ids)


def test_submission_ids_are_the_same_each_time() -> None:
    assert submission_id("quickstart-abc", "pretrain", 2) == "quickstart-abc-pretrain-2"


def test_titles_take_any_script_and_two_spellings_are_one() -> None:
    assert checked_title(" 李明 ") == "李明"
    assert checked_title("e\u0301") == checked_title("é")


@pytest.mark.parametrize("bad", ["", "  ", "a\nb", "a\x1b[31m", "x" * 201])
def test_titles_are_one_clean_line(bad: str) -> None:
    with pytest.raises(ValueError, match="title"):
        checked_title(bad)
