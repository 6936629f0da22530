"""`headrace demo`: figures that come from the pipeline, a trace, and a screen."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import AsyncIterator
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from headrace.cli import Refused
from headrace.cli.demo import demo
from headrace.cli.outage import screen
from headrace.cli.outage.command import choose
from headrace.cli.outage.scene import MockModel, Story, play
from headrace.model import BreakerState
from headrace.runtime.openai_worker import OpenAIWorker
from headrace.runtime.prompts import PromptRequest
from headrace.runtime.worker_errors import WorkerError
from headrace.testing import ScriptedEngine, run_virtual, steps

TOTALS = {
    "requests": 20,
    "model_calls": 3,
    "shared": 9,
    "answered": 12,
    "failed": 5,
    "refused": 3,
    "dead_letters": 8,
    "breaker": "open",
}


@pytest.fixture(scope="module")
def story() -> Story:
    """The demo as it is, on virtual time."""
    return run_virtual(play(MockModel()))


def test_the_figures(story: Story) -> None:
    """Three model calls serve twelve; five fail, three are refused, eight dead letters; the breaker is open."""
    assert story.totals == TOTALS
    assert list(story.totals) == list(TOTALS)
    assert story.breaker is BreakerState.OPEN
    assert story.seconds["answers"] == pytest.approx(0.3)
    assert story.seconds["outage"] == pytest.approx(7 * 0.015)


def test_the_figures_are_counted_and_not_told() -> None:
    """Another model makes other figures: one that fails, and one that answers by pieces."""

    async def broken(prompt: PromptRequest) -> str:
        raise WorkerError(status=400)

    async def spelling(prompt: PromptRequest) -> AsyncIterator[str]:
        yield prompt.input
        yield "!"

    refusing = run_virtual(play(broken))
    assert refusing.totals == {**TOTALS, "answered": 0, "failed": 17, "shared": 9, "model_calls": 3}
    pieces = run_virtual(play(spelling))
    assert pieces.totals == TOTALS
    assert {turn.answer.text for turn in pieces.answered if turn.answer} == {
        f"{turn.question}!" for turn in pieces.answered
    }


def test_every_dead_letter_has_its_reason_and_its_request(story: Story) -> None:
    """req-13 to req-17 failed at the provider, req-18 to req-20 never got there."""
    reasons = [(letter.request_id, letter.reason, len(letter.attempts)) for letter in story.letters]
    assert reasons == [(f"req-{n}", "inference_failure", 1) for n in range(13, 18)] + [
        (f"req-{n}", "circuit_open", 0) for n in range(18, 21)
    ]
    assert {attempt.status for letter in story.letters for attempt in letter.attempts} == {503}
    told = [turn.error.fault.status for turn in story.outage if turn.error]
    assert told == [503] * 8
    for letter in story.letters:
        assert letter.body is not None
        assert PromptRequest.read(letter.body).user == "erin"


def test_the_trace_tells_it_event_by_event(story: Story) -> None:
    """Each event has its time, kind and request; the kinds add up to the totals."""
    events = story.trace.events
    assert json.loads(story.trace.text()) == events
    kinds = Counter(str(event["kind"]) for event in events)
    assert kinds == {
        "send": 20,
        "model_start": 3,
        "model_done": 3,
        "joined": 9,
        "output": 12,
        "provider_503": 5,
        "breaker": 1,
        "dlq": 8,
    }
    assert all(re.fullmatch(r"req-\d\d", str(event["request_id"])) for event in events)
    times = [event["t"] for event in events]
    assert times == sorted(times, key=lambda t: float(str(t)))
    order = [(event["kind"], event["request_id"]) for event in events]
    assert order.index(("send", "req-01")) < order.index(("model_start", "req-01")), (
        "nobody is asked before the question"
    )
    (breaker,) = (event for event in events if event["kind"] == "breaker")
    assert (breaker["request_id"], breaker["state"]) == ("req-17", "open")
    joined = [(event["request_id"], event["shared_with"]) for event in events if event["kind"] == "joined"]
    assert joined[:3] == [("req-04", "req-01"), ("req-05", "req-02"), ("req-06", "req-03")]


def test_the_screen_shows_it_all(story: Story) -> None:
    """Each answer with its user and its origin, each dead letter, the totals, the breaker; 80 columns are enough."""
    out = StringIO()
    console = Console(file=out, width=80, highlight=False)
    console.print(screen.opening("mock, 300 ms"), screen.first_act(story.answered))
    console.print(screen.second_act(story), screen.ending(story))
    lines = [" ".join(line.split()) for line in out.getvalue().splitlines()]
    assert "req-01 alice 1 A full receiver slows its senders down. model call 300" in lines
    assert "req-12 dave 3 An unanswered request, with its reason. shared 300" in lines
    assert any(line.startswith("req-13 erin 503 upstream_error the provider was asked") for line in lines)
    assert any(line.startswith("req-18 erin 503 circuit_open the breaker is open") for line in lines)
    assert sum("inference_failure" in line for line in lines) == 5
    assert "20 3 9 12 5 3 8 open" in lines
    assert any(line.startswith("The breaker lets one request through in 60 s. All this took 0.4") for line in lines)


def test_json_and_trace_from_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--json` prints exactly the totals and timings, `--trace` writes a file; where it cannot, it says so."""
    monkeypatch.setattr("asyncio.run", run_virtual)
    path = tmp_path / "trace.json"
    demo(as_json=True, trace=path)
    printed = json.loads(capsys.readouterr().out)
    assert printed == {**TOTALS, "timings": {"answers": 0.3, "outage": 0.105, "total": 0.405}}
    assert len(json.loads(path.read_text())) == 61
    with pytest.raises(Refused, match="cannot write"):
        demo(as_json=True, trace=tmp_path / "no" / "such" / "place")
    capsys.readouterr()
    demo()
    assert "Four users" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("provider", "model", "key_env", "message"),
    [
        (None, "m", None, "belong to --provider"),
        ("openai", None, None, "with --model"),
        ("openai", "m", None, "OPENAI_API_KEY is not set"),
        ("anthropic", "m", None, "ANTHROPIC_API_KEY is not set"),
        ("http://x", "m", "MY_KEY", "MY_KEY is not set"),
        ("acme", "m", None, "neither openai nor anthropic nor a URL"),
    ],
)
def test_a_mistake_is_told_in_a_sentence(
    provider: str | None, model: str | None, key_env: str | None, message: str
) -> None:
    """What does not go together, or is missing, is refused before anything begins."""
    with pytest.raises(Refused, match=message):
        choose(provider, model, key_env, {}, stream=True)


def test_a_key_goes_only_to_its_own_provider() -> None:
    """A URL gets no key unless one is named for it."""
    env = {"OPENAI_API_KEY": "sk-1", "MY_KEY": "k"}
    assert isinstance(choose("openai", "m", None, env, stream=True)[0], OpenAIWorker)
    for key_env, key in ((None, None), ("MY_KEY", "k")):
        worker, _ = choose("http://127.0.0.1:9", "m", key_env, env, stream=True)
        assert isinstance(worker, OpenAIWorker)
        assert worker._key == key  # it is shown nowhere


@pytest.mark.parametrize("stream", [True, False])
async def test_a_real_server_is_asked_three_times(stream: bool) -> None:
    """`--provider URL` asks an OpenAI-shaped server, streaming or not, and shows its text."""
    async with ScriptedEngine([steps.answer("Indeed so.")]) as engine:
        worker, name = choose(engine.url, "m1", "KEY", {"KEY": "k-123"}, stream=stream)
        story = await play(worker, apart=0.0)
        assert story.totals == TOTALS
        assert {turn.answer.text for turn in story.answered if turn.answer} == {"Indeed so."}
        assert name == f"m1 at {engine.url}"
        assert len(engine.requests) == 3
        for request in engine.requests:
            assert request.header("authorization") == "Bearer k-123"
            body = request.json()
            assert (body["model"], body["stream"], request.path) == ("m1", stream, "/v1/chat/completions")


def test_a_model_that_does_not_answer_is_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody listens at `--provider URL`: the screen shows all that failed, and the command fails with the reason."""
    monkeypatch.setattr("asyncio.run", run_virtual)
    with pytest.raises(Refused, match=r"m at http://127.0.0.1:1 left 12 of 12 questions unanswered: no connection"):
        demo(provider="http://127.0.0.1:1", model="m")
    assert "failed" in capsys.readouterr().out
