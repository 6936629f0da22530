"""What the mock engine reads and writes, without a server."""

import base64
import json
import struct

import pytest

from headrace.testing.answers import Refused, Rendering, read_completion, read_embeddings, vectors_body


def _chat(eos_after: int | None = None, **fields: object) -> Rendering:
    body = {"model": "m", "messages": [{"role": "user", "content": "one two three"}], **fields}
    return Rendering(read_completion(json.dumps(body).encode(), chat=True, model="m", eos_after=eos_after), "id-1", 7)


@pytest.mark.parametrize(
    ("fields", "eos_after", "length", "reason"),
    [
        ({}, None, 16, "stop"),
        ({"max_tokens": 5}, None, 5, "length"),
        ({"max_tokens": 9, "max_completion_tokens": 4}, None, 4, "length"),
        ({}, 3, 3, "stop"),
        ({"max_tokens": 5}, 3, 3, "stop"),
        ({"max_tokens": 2}, 3, 2, "length"),
        ({"max_tokens": 5, "ignore_eos": True}, 3, 5, "length"),
    ],
)
def test_how_long_an_answer_is(fields: dict[str, object], eos_after: int | None, length: int, reason: str) -> None:
    """The request's limit, the engine's own end and `ignore_eos` decide, and the finish reason says which did."""
    answer = json.loads(_chat(eos_after, **fields).whole())

    assert len(answer["choices"][0]["message"]["content"].split()) == length
    assert answer["choices"][0]["finish_reason"] == reason
    assert answer["usage"] == {"prompt_tokens": 3, "completion_tokens": length, "total_tokens": 3 + length}


def test_how_urgent_a_request_is() -> None:
    """vLLM's field `priority`: a whole number, 0 where it is absent; anything else is the client's mistake."""
    assert [_chat(**fields).asked.priority for fields in ({}, {"priority": None}, {"priority": -3})] == [0, 0, -3]
    with pytest.raises(Refused):
        _chat(priority="high")


def test_streamed_and_whole_are_the_same_text() -> None:
    """The pieces joined are the whole answer: the words of the last user message, over and over."""
    rendering = _chat(max_tokens=5, stream_options={"include_usage": True})
    pieces = [json.loads(rendering.piece(number)[6:]) for number in range(1, 6)]
    closing = rendering.closing().decode().split("\n\n")

    text = "".join(piece["choices"][0]["delta"]["content"] for piece in pieces)
    assert text == json.loads(rendering.whole())["choices"][0]["message"]["content"] == "one two three one two"
    assert json.loads(rendering.role()[6:])["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert json.loads(closing[0][6:])["choices"][0]["finish_reason"] == "length"
    assert (json.loads(closing[1][6:])["choices"], closing[2:]) == ([], ["data: [DONE]", ""])


@pytest.mark.parametrize("given", ["one", "one two three one", "one two three one two three"])
def test_an_answer_can_be_gone_on_from(given: str) -> None:
    """The rest alone, its first blank included; the given words count as prompt and against the engine's own end."""
    messages = [{"role": "user", "content": "one two three"}, {"role": "assistant", "content": given}]
    whole = json.loads(_chat(7).whole())["choices"][0]["message"]["content"]
    rest = _chat(7, messages=messages, continue_final_message=True, add_generation_prompt=False)
    body = json.loads(rest.whole())
    streamed = "".join(
        json.loads(rest.piece(number)[6:])["choices"][0]["delta"]["content"]
        for number in range(1, rest.asked.output + 1)
    )
    assert given + body["choices"][0]["message"]["content"] == given + streamed == whole
    assert body["usage"]["total_tokens"] == 3 + 7
    assert _chat(messages=messages, continue_final_message=True).asked.output == 16 - len(given.split())


def test_prompts_of_every_form_are_counted() -> None:
    """Content in parts, several messages, token numbers: all count as prompt tokens."""
    parts = [
        {"type": "text", "text": "a b"},
        {"type": "image_url", "image_url": {"url": "x"}},
        {"type": "text", "text": "c"},
    ]
    messages = [{"role": "system", "content": "be kind"}, {"role": "user", "content": parts}, {"role": "tool"}]
    body = json.dumps({"model": "m", "messages": messages}).encode()
    asked = read_completion(body, chat=True, model="m", eos_after=None)
    assert (asked.prompt_tokens, asked.words) == (5, ("a", "b", "c"))

    for prompt, tokens in (("a b", 2), (["a b c"], 3), ([1, 2, 3, 4], 4), ([[1, 2]], 2)):
        body = json.dumps({"model": "m", "prompt": prompt}).encode()
        assert read_completion(body, chat=False, model="m", eos_after=None).prompt_tokens == tokens


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{", 400),
        (b"[" * 20_000, 400),
        (b"[]", 400),
        (b'{"model":"other","messages":[]}', 404),
        (b'{"model":"m"}', 400),
        (b'{"model":"m","messages":["x"]}', 400),
        (b'{"model":"m","messages":[{}],"max_tokens":0}', 400),
        (b'{"model":"m","messages":[{}],"max_tokens":true}', 400),
        (b'{"model":"m","messages":[{}],"n":2}', 400),
    ],
)
def test_what_cannot_be_answered_is_refused_as_vllm_does(body: bytes, status: int) -> None:
    """Malformed requests and unknown models give an error body with four fields and the status as integer code."""
    with pytest.raises(Refused) as caught:
        read_completion(body, chat=True, model="m", eos_after=None)

    error = json.loads(caught.value.body)["error"]
    assert (caught.value.status, error["code"], set(error)) == (status, status, {"message", "type", "param", "code"})


def test_vectors_follow_from_the_text() -> None:
    """The same text has the same vector, another text another; base64 carries the same numbers."""
    plain = json.loads(vectors_body(read_embeddings(b'{"model":"m","input":["a","b","a"]}', "m")))["data"]
    packed = json.loads(vectors_body(read_embeddings(b'{"model":"m","input":"a","encoding_format":"base64"}', "m")))
    numbers = struct.unpack("<8f", base64.b64decode(packed["data"][0]["embedding"]))

    assert plain[0]["embedding"] == plain[2]["embedding"] != plain[1]["embedding"]
    assert list(numbers) == pytest.approx(plain[0]["embedding"])
    assert packed["usage"]["prompt_tokens"] == 1
    with pytest.raises(Refused):
        read_embeddings(b'{"model":"m","input":[]}', "m")
