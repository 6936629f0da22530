"""What is asked has about the length it should have, and is never asked twice."""

from __future__ import annotations

from random import Random

import msgspec

from headrace.bench.lengths import Fixed
from headrace.bench.patterns import User
from headrace.bench.questions import Question, Questioner
from headrace.model import ServiceClass


def questioner(user: User, **options: bool) -> Questioner:
    """With a known seed."""
    return Questioner(user, "m", Random(1), key=None, **options)


def fields(question: Question) -> dict[str, object]:
    """The body as it is sent."""
    return msgspec.json.decode(question.body, type=dict[str, object])


def texts(question: Question) -> list[tuple[str, str]]:
    """Who says what in it."""
    turns = msgspec.convert(fields(question)["messages"], list[dict[str, str]])
    return [(turn["role"], turn["content"]) for turn in turns]


def test_a_prompt_is_as_long_as_it_should_be() -> None:
    """A word is about a token; the answer is bounded, streamed and counted."""
    question = questioner(User(name="ann", prompt=Fixed(300), output=Fixed(20))).ask()
    assert len(texts(question)[0][1].split()) == question.prompt_tokens == 300
    body = fields(question)
    assert (body["model"], body["max_tokens"], body["stream"], body["user"]) == ("m", 20, True, "ann")
    assert body["stream_options"] == {"include_usage": True}
    assert "ignore_eos" not in body


def test_no_prompt_is_asked_twice() -> None:
    """Equal requests would be answered by one call or from a cache, and measure that."""
    asker = questioner(User(name="ann", prompt=Fixed(1)))
    assert len({asker.ask().body for _ in range(500)}) == 500


def test_user_class_and_key_go_along() -> None:
    """The gateway learns whose request it is; a key of the user's own is used."""
    user = User(name="ann", service_class=ServiceClass.BATCH)
    headers = dict(Questioner(user, "m", Random(1), key="k").ask().headers)
    assert headers == {
        "x-headrace-user": "ann",
        "x-headrace-keepalive": "off",
        "x-headrace-class": "batch",
        "authorization": "Bearer k",
    }


def test_engines_can_be_asked_for_full_length() -> None:
    """Only when it is wanted: others refuse fields they do not know."""
    assert fields(questioner(User(name="ann"), ignore_eos=True).ask())["ignore_eos"] is True


def test_a_conversation_grows_and_begins_anew() -> None:
    """Each turn carries the ones before it; past its bound a new one with another name follows."""
    asker = questioner(User(name="ann", session=100, shared=30, prompt=Fixed(40), output=Fixed(20)))
    first = asker.converse()
    one = asker.ask(first)
    assert [role for role, _ in texts(one)] == ["system", "user"]
    same = asker.answered(first, "hello", 20)
    assert same is first
    two = asker.ask(same)
    assert [role for role, _ in texts(two)] == ["system", "user", "assistant", "user"]
    assert two.prompt_tokens == 30 + 40 + 20 + 40
    new = asker.answered(same, "bye", 20)
    assert new is not first
    assert dict(asker.ask(new).headers)["x-session-id"] == "ann-2"
    assert texts(one)[0] == texts(asker.ask(asker.converse()))[0], "the shared beginning is shared by all sessions"
