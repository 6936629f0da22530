"""Every fault, in every form of answer, with a healthy second instance and without: the rows of `fault_table.py`.

Each cell checks what the caller reads (status, headers, body, nothing of the engine's insides), what is counted, that
everything is given back, whether the second instance is asked, and that the engine is used again once it is well.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import pytest
from prometheus_client.parser import text_string_to_metric_families

from headrace.model import Cause, Ending, OutcomeKind
from headrace.testing import ScriptedEngine, steps
from tests.e2e.client import CHAT, chat
from tests.e2e.fault_fates import LIMITS, Fate, Row
from tests.e2e.fault_scripts import WORDS, FaultyEngine
from tests.e2e.fault_table import DOCUMENT, TABLE, document
from tests.e2e.front import Front, front
from tests.e2e.raw import RawAnswer, asked
from tests.runtime.virtual import later, virtually

COMPLETIONS = "/v1/completions"
FORMS: dict[str, tuple[str, dict[str, object]]] = {
    "chat whole": (CHAT, chat()),
    "chat streamed": (CHAT, {**chat(), "stream": True}),
    "completions whole": (COMPLETIONS, {"model": "m", "prompt": "hi"}),
    "completions streamed": (COMPLETIONS, {"model": "m", "prompt": "hi", "stream": True}),
}
PATIENCE = 1000.0
LINGER = 1.1
"""A stream that is complete has a second to end by itself."""
ROWS = {row.name: row for rows in TABLE.values() for row in rows}


def cells(*, beside: bool) -> list[object]:
    """Each fault in each form to which it applies. Slow: what differs from another cell in a detail only.

    Completions are chat but for the chunks' shape; a good answer has no use for a second instance; the many forms of
    `Retry-After` are about the only one, and the same to both forms of answer.
    """
    found: list[object] = []
    for row in ROWS.values():
        for form in FORMS:
            fate = row.stream if "streamed" in form else row.whole
            if fate is not None:
                waits = row.name.startswith("429, ") and (beside or form != "chat whole")
                idle = beside and fate.cause is Cause.OK
                marks = [pytest.mark.slow] if waits or idle or form.startswith("completions") else []
                found.append(pytest.param(row, form, id=f"{row.name}-{form}", marks=marks))
    return found


def fate_of(row: Row, form: str) -> Fate:
    """What the table says of this cell."""
    fate = row.stream if "streamed" in form else row.whole
    assert fate is not None
    return fate


def first_choices(answer: RawAnswer) -> list[dict[str, object]]:
    """What a stream says of its first choice."""
    return [choice for chunk in answer.chunks for choice in chunk.get("choices", []) if choice["index"] == 0]


class Cell:
    """One request to a gateway with a faulty engine, and what it is compared with."""

    def __init__(self, gate: Front, row: Row, form: str) -> None:
        self._gate = gate
        self._row = row
        self._path, self._body = FORMS[form]
        self._streamed = "streamed" in form
        self._fate = fate_of(row, form)

    async def ask(self) -> tuple[RawAnswer, float]:
        """The answer, and how many seconds it took. Afterwards nothing is held by anybody."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        answer = await asked(self._gate.client.url, self._body, path=self._path, within=PATIENCE)
        took = loop.time() - began
        await self._gate.idle()
        await later(LINGER)
        assert (self._gate.headrace.gateway.flights, self._gate.headrace.exchanges) == (0, 0)
        return answer, took

    def check_answered(self, answer: RawAnswer, text: str) -> None:
        """A whole, good answer in the form asked for."""
        assert answer.status == 200
        if self._streamed:
            assert answer.header("content-type") == "text/event-stream; charset=utf-8"
            assert (answer.text, answer.done, answer.error_events) == (text, True, [])
            assert all(chunk["choices"] for chunk in answer.chunks), "nobody asked for usage"
        else:
            assert answer.header("content-type") == "application/json"
            choice = answer.json["choices"][0]
            assert (choice["message"]["content"] if self._path == CHAT else choice["text"]) == text
        assert answer.header("x-headrace-cache") == "miss"

    def check_fate(self, answer: RawAnswer) -> None:
        """What the table says."""
        fate = self._fate
        if fate.cause is Cause.OK:
            self.check_answered(answer, fate.text)
            assert answer.header("x-headrace-instance") == "a"
            return
        assert answer.status == fate.status
        if fate.broken:
            assert (answer.text, answer.broken) == (fate.text, True)
            assert not [choice for choice in first_choices(answer) if choice.get("finish_reason")], "none is invented"
            (error,) = answer.error_events
        else:
            error = answer.error
            assert answer.header("content-type") == "application/json"
            assert answer.header("x-headrace-drop-reason") == fate.ending.value
            assert answer.header("x-headrace-attempts") == str(fate.asked)
            assert answer.header("x-should-retry") == ("false" if fate.final else None)
            told = answer.header("retry-after")
            assert ((int(told),) if told else ()) in [(seconds,) for seconds in fate.retry_after] or [()]
        assert (error["type"], error["code"]) == (fate.kind, fate.code)
        assert (WORDS in error["message"]) == (fate.cause is Cause.REJECTED)

    async def check_counts(self, causes: dict[Cause, int], answered: bool) -> None:
        """How attempts, requests, dead letters and the breaker were counted."""
        counted = await self._metrics()
        for cause in Cause:
            assert counted("attempts_total", cause.value, cause.kind.value) == causes.get(cause, 0)
        ending = Ending.ANSWERED if answered else self._fate.ending
        for other in Ending:
            assert counted("requests_total", "m", "normal", other.value) == (other is ending)
        assert counted("dead_letter_depth") == (not answered and self._fate.cause is not Cause.REJECTED)
        failure = any(cause.kind is OutcomeKind.FAILURE for cause in causes)
        assert counted("breaker_state", "a") == (2 if failure else 0)
        assert counted("inflight", "a") == 0
        if self._row.usage is not None:
            assert (counted("tokens_total", "prompt"), counted("tokens_total", "completion")) == self._row.usage

    async def _metrics(self) -> Callable[..., float]:
        """What `/metrics` says, by the name without its prefix and the values of the labels in any order."""
        text = (await self._gate.client.get("/metrics")).body.decode()
        samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
        values = {(sample.name, frozenset(sample.labels.values())): sample.value for sample in samples}
        return lambda name, *labels: values.get((f"headrace_{name}", frozenset(labels)), 0.0)


def assert_clean(answer: RawAnswer) -> None:
    """Nothing of the engine's insides is to be seen, and the request can be named."""
    text = answer.body.decode() + str(answer.fields)
    assert not [word for word in ("127.0.0.1", "Welcome", "SSH", "sector", "Errno") if word in text.replace(WORDS, "")]
    assert (answer.header("x-request-id") or "").startswith("req-")
    assert answer.header("server") is None


SECTIONS: Mapping[str, Mapping[str, object]] = {
    "timeouts": LIMITS,
    "circuit_breaker": {"failure_threshold": 1},
    "load_balancer": {"strategy": "round_robin"},
}


@pytest.mark.parametrize(("row", "form"), cells(beside=False))
@virtually
async def test_a_fault_of_the_only_instance(row: Row, form: str) -> None:
    """The caller is told what the table says, in time; all is given back; once the engine is well it is used again."""
    fate = fate_of(row, form)
    async with row.engine(row.script) as engine, front(engine, **SECTIONS) as gate:
        cell = Cell(gate, row, form)
        answer, took = await cell.ask()
        cell.check_fate(answer)
        assert_clean(answer)
        if fate.limit is not None:
            assert took == pytest.approx(LIMITS[fate.limit], rel=0.13)
        elif fate.asked == 1 and fate.cause is not Cause.OK:
            assert took < 5.0, "nothing is waited for"
        await cell.check_counts({fate.cause: fate.asked}, answered=fate.cause is Cause.OK)
        await engine.until(lambda: not engine.answering or not engine.open_connections, within=LINGER)
        if row.engine is FaultyEngine:
            assert engine.asked == fate.asked
        if fate.cause is not Cause.OK:
            await _recovers(gate, engine)


async def _recovers(gate: Front, engine: FaultyEngine) -> None:
    if engine.mends:
        await engine.mend()
        await later(65.0)
        assert (await asked(gate.client.url)).status == 200
        await gate.idle()


@pytest.mark.parametrize(("row", "form"), cells(beside=True))
@virtually
async def test_a_fault_beside_a_healthy_instance(row: Row, form: str) -> None:
    """What can be made good is answered by the other instance, in whole; what cannot is told as if it were alone."""
    fate = fate_of(row, form)
    async with (
        row.engine(row.script) as engine,
        ScriptedEngine(steps.answer("second")) as second,
        front(engine, second, **SECTIONS) as gate,
    ):
        cell = Cell(gate, row, form)
        answer, _ = await cell.ask()
        assert_clean(answer)
        assert len(second.requests) == int(fate.again)
        if row.engine is FaultyEngine:
            assert engine.asked == 1
        if fate.again:
            cell.check_answered(answer, "second")
            told = (answer.header("x-headrace-attempts"), answer.header("x-headrace-instance"))
            assert told == ("2", "b")
        else:
            cell.check_fate(answer)
        await cell.check_counts(
            {fate.cause: 1, **({Cause.OK: 1} if fate.again else {})}, answered=fate.again or fate.cause is Cause.OK
        )
        assert gate.instance("b").reliability == 1.0
        await engine.until(lambda: not engine.answering or not engine.open_connections, within=LINGER)


def test_the_document_is_the_table() -> None:
    """`docs/faults.md` says what is tested here; `python -m tests.e2e.fault_table` writes it anew."""
    assert DOCUMENT.read_text(encoding="utf-8") == document()


def test_every_fault_has_a_name_of_its_own() -> None:
    """No row hides another."""
    assert len(ROWS) == sum(len(rows) for rows in TABLE.values())
