"""What is written on the command line becomes users, or a sentence about what is wrong with it."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.bench.lengths import LONGEST, Fixed, LogNormal, Uniform, read_lengths
from headrace.bench.patterns import PRESETS, User, read_user, read_users
from headrace.model import ServiceClass


def test_a_user_is_read_with_all_its_keys() -> None:
    """Each key sets its field; blanks around pairs do not matter."""
    (user,) = read_user(
        "chat: concurrency=3, think=1.5, at=2, until=9, requests=50, prompt=10-20, output=lognormal:40:0.5, "
        "shared=100, session=4000, class=interactive, key_env=KEY"
    )
    assert user == User(
        name="chat",
        concurrency=3,
        think=1.5,
        at=2.0,
        until=9.0,
        requests=50,
        prompt=Uniform(10, 20),
        output=LogNormal(40, 0.5),
        shared=100,
        session=4000,
        service_class=ServiceClass.INTERACTIVE,
        key_env="KEY",
    )


def test_a_burst_has_the_concurrency_it_is_given() -> None:
    """All of a burst is under way at once unless that is bounded; a lone caller is one."""
    flood, storm, caller = read_users(["flood:burst=200,concurrency=50", "storm:burst=30", "caller"])
    assert [user.at_once for user in (flood, storm, caller)] == [50, 30, 1]
    assert [user.limited for user in (flood, storm, caller)] == [True, True, False]


def test_copies_are_numbered() -> None:
    """One text can stand for several users with names of their own."""
    assert [user.name for user in read_user("light:rate=0.5,copies=3")] == ["light-1", "light-2", "light-3"]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "a user is written"),
        ("a:rate", "'rate' is no key=value"),
        ("a:rat=1", "'rat' is no key; there are rate, burst"),
        ("a:rate=0", "no number of at least"),
        ("a:rate=nan", "no number of at least"),
        ("a:rate=x", "no number of at least"),
        ("a:burst=0", "no number from 1"),
        ("a:concurrency=5000", "no number from 1 to 1024"),
        ("a:class=urgent", "'urgent' is no class"),
        ("a:rate=1,burst=2", "two ways to ask"),
        ("a:rate=1,session=100", "conversations need callers"),
        ("a:burst=1,think=1", "only callers"),
        ("a:prompt=9-3", "ends before it begins"),
        ("a:prompt=many", "no number of tokens"),
        ("a:prompt=normal:1:2", "is no length"),
        ("a:output=lognormal:40:9", "deviation"),
    ],
)
def test_a_mistake_is_a_sentence(text: str, sentence: str) -> None:
    """What cannot be meant is refused, and the user whose pattern it is in is named."""
    with pytest.raises(ValueError, match=sentence) as caught:
        read_user(text)
    assert "user a:" in str(caught.value) or not text


def test_two_users_of_one_name_are_refused() -> None:
    """Their results could not be told apart."""
    with pytest.raises(ValueError, match="two users named light-1"):
        read_users(["light:copies=2", "light-1:rate=1"])


@given(st.text(max_size=60))
def test_any_text_is_users_or_a_sentence(text: str) -> None:
    """Nothing that can be typed raises anything else."""
    try:
        users = read_users([text])
    except ValueError:
        users = ()
    assert all(user.at_once >= 1 for user in users)


@given(
    st.one_of(
        st.builds(Fixed, st.integers(1, LONGEST)),
        st.builds(lambda a, b: Uniform(min(a, b), max(a, b)), st.integers(1, 9999), st.integers(1, 9999)),
        st.builds(LogNormal, st.floats(1, LONGEST), st.floats(0, 4)),
    ),
    st.integers(),
)
def test_lengths_stay_within_bounds(lengths: Fixed | Uniform | LogNormal, seed: int) -> None:
    """Whatever is drawn, a request has at least one token and at most the longest."""
    random = Random(seed)
    assert all(1 <= lengths.draw(random) <= LONGEST for _ in range(20))


def test_lengths_have_the_mean_that_was_asked_for() -> None:
    """The tail of a lognormal length is paid for by its middle."""
    random, lengths = Random(1), read_lengths("lognormal:200:0.8")
    drawn = [lengths.draw(random) for _ in range(20_000)]
    assert sum(drawn) / len(drawn) == pytest.approx(200, rel=0.03)
    assert str(lengths) == "about 200"


def test_presets_have_users_that_can_be_told_apart() -> None:
    """Each ready-made set has several users with different names, and the flood comes with two light ones."""
    for users in PRESETS.values():
        assert len({user.name for user in users}) == len(users) > 1
    assert [user.name for user in PRESETS["flood"]] == ["flood", "light-1", "light-2"]
