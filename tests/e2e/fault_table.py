"""The table of faults: what an engine does, how that is counted, and what the caller is told.

It is read three ways: as the expectations of `test_fault_matrix.py`, as the source of `docs/faults.md`
(`python -m tests.e2e.fault_table` writes it), and by people.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from headrace.model import Cause, Ending
from headrace.testing import Script, ScriptedConnection, Step, steps
from tests.e2e import fault_scripts as does
from tests.e2e.fault_fates import (
    FINE,
    IN_VAIN,
    OUR_KEY,
    Fate,
    Row,
    at,
    both,
    broken,
    failed,
    full,
    limited,
    rejected,
    split,
    streams,
)

CUT, PROTOCOL, SERVER, TIMEOUT = Cause.BROKEN_STREAM, Cause.PROTOCOL, Cause.SERVER_ERROR, Cause.TIMEOUT


def part(conn: ScriptedConnection) -> bytes:
    """A part of the answer: the first word of a stream, or half a body."""
    return does.piece(conn, "a") if conn.request.streams else does.HALF


def begun(then: Step) -> Script:
    """A part of the answer, then this."""
    return does.sends(part, then=then)


def opened(then: Step) -> Script:
    """Only what comes before the first content, then this."""
    return does.by_form(stream=[steps.role(), then], whole=[steps.head(200, (does.JSON,)), then])


def error_in_200(kind: str) -> Script:
    """An error instead of an answer, under status 200."""
    return does.by_form(
        stream=[steps.role(), steps.error(does.WORDS, kind)],
        whole=steps.json(200, {"error": {"message": does.WORDS, "type": kind, "param": None, "code": None}}),
    )


CONNECTING = (
    at("the connection is refused", does.NobodyListens, failed(Cause.CONNECT)),
    at("the connection is accepted, then closed", does.HangsUp, failed(CUT)),
    at("TLS fails", does.SpeaksNoTls, failed(Cause.CONNECT)),
    at("TLS with a certificate of an unknown authority", does.NobodyVouchesFor, failed(Cause.CONNECT)),
    at("connecting takes for ever", does.BlackHole, failed(Cause.CONNECT, limit="connect")),
)

SILENCE = (
    split(
        "no header for ever",
        steps.hang(),
        whole=failed(TIMEOUT, limit="attempt"),
        stream=failed(TIMEOUT, limit="first_token"),
    ),
    split(
        "headers, then silence",
        opened(steps.hang()),
        whole=failed(TIMEOUT, limit="attempt"),
        stream=failed(TIMEOUT, limit="first_token"),
    ),
    split(
        "signs of life, but no answer",
        does.only_pings,
        whole=failed(TIMEOUT, limit="attempt"),
        stream=failed(TIMEOUT, limit="first_token"),
    ),
    both("a slow first token, within the limit", [does.lasts(10.0), steps.answer("fine")], FINE),
    split(
        "silence in the middle of the answer",
        begun(steps.hang()),
        whole=failed(TIMEOUT, limit="idle"),
        stream=broken(TIMEOUT, limit="idle"),
    ),
    streams(
        "silence after the finish reason",
        [steps.chunk("fine"), steps.finish(), steps.hang()],
        replace(FINE, limit="idle"),
    ),
)

ONE_OF_TWO = [steps.chunk("a"), steps.chunk("b", 1), steps.finish(index=1), steps.chunk("", 0), steps.cut()]

BREAKING_OFF = (
    both("closed without an answer", steps.close(), failed(CUT)),
    both("reset without an answer", steps.reset(), failed(CUT)),
    both("cut in the middle of the head", [steps.raw(b"HTTP/1.1 200 OK\r\ncontent-ty"), steps.close()], failed(CUT)),
    both("cut before any content", opened(steps.cut()), failed(CUT)),
    split("cut in the middle of the answer", begun(steps.cut()), whole=failed(CUT), stream=broken()),
    split("reset in the middle of the answer", begun(steps.reset()), whole=failed(CUT), stream=broken()),
    split("a proper end before any content", opened(steps.end()), whole=failed(PROTOCOL), stream=failed(CUT)),
    split("a proper end in the middle of the answer", begun(steps.end()), whole=failed(PROTOCOL), stream=broken()),
    streams("`[DONE]` before any chunk", [steps.done(), steps.end()], failed(PROTOCOL)),
    streams("cut when one of two choices has finished", ONE_OF_TWO, broken()),
    streams("cut after the finish reason", [steps.chunk("fine"), steps.finish(), steps.cut()], FINE),
)

STATUSES = (
    both("400", does.says(400), rejected(400)),
    both(
        "400: the prompt is too long",
        does.says(400, kind="exceed_context_size_error"),
        replace(rejected(400, "invalid_request_error"), code="context_length_exceeded"),
    ),
    both("401", does.says(401), OUR_KEY),
    both("403", does.says(403), OUR_KEY),
    both("404", does.says(404), rejected(404)),
    both("408", does.says(408), failed(TIMEOUT)),
    both("409", does.says(409), rejected(409)),
    both("413", does.says(413), rejected(413)),
    both("422", does.says(422), rejected(422)),
    both("429", does.limited(), IN_VAIN),
    both("429, retry after 30", does.limited("30"), limited(30)),
    both("429, retry after 7.5", does.limited("7.5"), replace(IN_VAIN, retry_after=(8,))),
    both("429, retry after a date", does.limited_until, limited(29, 30)),
    both("429, retry after a date that is over", does.limited("Thu, 01 Jan 2026 00:00:00 GMT"), IN_VAIN),
    both("429, retry after 0", does.limited("0"), IN_VAIN),
    both("429, retry after -5", does.limited("-5"), IN_VAIN),
    both("429, retry after `soon`", does.limited("soon"), IN_VAIN),
    both("429, retry after `NaN`", does.limited("NaN"), IN_VAIN),
    both("429, retry after `inf`", does.limited("inf"), IN_VAIN),
    both("429, retry after 99999999", does.limited("99999999"), limited(60)),
    both("429, retry after 20 and after 30", does.limited("20", "30"), limited(30)),
    both("429, `retry-after-ms: 12000`", does.says(429, ("retry-after-ms", "12000")), limited(12)),
    both(
        "429, retry after 30, and no body", [*does.half_refusal(429), steps.hang()], replace(limited(30), limit="idle")
    ),
    both("429, retry after 30, in an unknown packing", does.packed_refusal, limited(30)),
    both("500", does.says(500), failed(SERVER)),
    both("500, and no body", [*does.half_refusal(500), steps.hang()], failed(SERVER, limit="idle")),
    both("500, cut in its body", [*does.half_refusal(500), steps.cut()], failed(SERVER)),
    both("502, a proxy's page", steps.whole(502, does.HTML, [("content-type", "text/html")]), failed(SERVER)),
    both("503", does.says(503), failed(SERVER, 503, retry_after=(60,))),
    both("503, retry after 30", does.says(503, ("retry-after", "30")), full(limited(30))),
    both(
        "504",
        does.says(504),
        replace(failed(SERVER), status=504, code="upstream_timeout", ending=Ending.INFERENCE_TIMEOUT),
    ),
    both("529", does.says(529), full(IN_VAIN)),
    both("a redirect", steps.whole(307, b"", [("location", "http://127.0.0.1:9/")]), failed(PROTOCOL)),
    both("204", steps.raw(b"HTTP/1.1 204 No Content\r\n\r\n"), failed(PROTOCOL)),
    both(
        "103, then a good answer",
        does.preceded(b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n", does.sends(does.good)),
        FINE,
    ),
)

ERRORS_IN_200 = (
    both("an error instead of the answer", error_in_200("server_error"), failed(SERVER)),
    both("an error instead of the answer: too many requests", error_in_200("rate_limit_error"), IN_VAIN),
    streams(
        "an error event in the middle",
        [steps.chunk("a"), steps.error(does.WORDS, "api_error"), steps.end()],
        broken(kind="api_error"),
    ),
    streams(
        "an error event in the middle: overloaded",
        [steps.chunk("a"), steps.error(does.WORDS, "overloaded_error"), steps.end()],
        broken(Cause.RATE_LIMITED, kind="overloaded_error"),
    ),
)

NOT_WHAT_WAS_ASKED_FOR = (
    split(
        "an HTML page with 200",
        steps.whole(200, does.HTML, [("content-type", "text/html")]),
        whole=failed(PROTOCOL),
        stream=failed(CUT),
    ),
    both(
        "JSON that is none",
        does.sends(lambda conn: does.BROKEN_EVENT if conn.request.streams else does.HALF),
        failed(PROTOCOL),
    ),
    streams(
        "JSON that is none, in the middle", [steps.chunk("a"), steps.event(does.BROKEN_EVENT), steps.end()], broken()
    ),
    split("an answer without choices", does.sends(does.empty), whole=failed(PROTOCOL), stream=failed(CUT)),
    both("a wrong content type", does.mislabelled, FINE),
    both("a whole body to one who asked for a stream", does.sends(does.body), FINE),
    split("a stream to one who asked for a whole body", does.sends(does.stream), whole=failed(PROTOCOL), stream=FINE),
    both("gzip unasked", does.packed, FINE),
    both(
        "gzip that is none",
        does.sends(does.good, ("content-encoding", "gzip")),
        failed(PROTOCOL),
    ),
    split("gzip that is cut", does.packed_half(steps.cut()), whole=failed(CUT), stream=broken()),
    split("gzip that ends too soon", does.packed_half(steps.end()), whole=failed(PROTOCOL), stream=broken(PROTOCOL)),
    both("an unknown packing", does.sends(does.good, ("content-encoding", "br")), failed(PROTOCOL)),
)

BREACHES_OF_HTTP = (
    both("no HTTP at all", [steps.raw(b"SSH-2.0-OpenSSH_9.6\r\n"), steps.close()], failed(PROTOCOL)),
    split("`content-length` too short", does.off_by(-12, steps.close()), whole=failed(PROTOCOL), stream=FINE),
    split("`content-length` too long, then closed", does.off_by(50, steps.close()), whole=failed(CUT), stream=FINE),
    split(
        "`content-length` too long, then silence",
        does.off_by(50, steps.hang()),
        whole=failed(TIMEOUT, limit="idle"),
        stream=FINE,
    ),
    both("two framings at once", does.preceded(does.TWO_FRAMINGS, steps.hang()), failed(PROTOCOL)),
    both("another protocol", does.preceded(does.UPGRADE, steps.hang()), failed(PROTOCOL)),
    both("no length, ended by closing", does.unframed(does.good), FINE),
    split("no length, closed too soon", does.unframed(part), whole=failed(PROTOCOL), stream=broken()),
    both("two answers to one request", does.twice, FINE),
    both(
        "a header of 64 KiB",
        [steps.raw(b"HTTP/1.1 200 OK\r\nx-long: " + b"x" * 65_536 + b"\r\n\r\n"), steps.close()],
        failed(PROTOCOL),
    ),
    streams("a line of 5 MiB", [does.endless_line], failed(PROTOCOL)),
    streams("a line of 5 MiB, in the middle", [steps.chunk("a"), does.endless_line], broken()),
)

ODD_BUT_COMPLETE = (
    split(
        "a proper end inside a character",
        does.sends(does.half_character),
        whole=failed(PROTOCOL),
        stream=failed(PROTOCOL),
    ),
    split(
        "cut inside a character",
        does.sends(does.half_character, then=steps.cut()),
        whole=failed(CUT),
        stream=failed(CUT),
    ),
    both("one byte at a time", does.drips, replace(FINE, text="你好🌍")),
    both(
        "no finish reason",
        does.by_form(
            stream=[steps.chunk("fine"), steps.done(), steps.end()],
            whole=does.sends(lambda conn: does.body(conn).replace(b'"stop"', b"null")),
        ),
        FINE,
    ),
    streams("no `[DONE]`", [steps.chunk("fine"), steps.finish(), steps.end()], FINE),
    streams(
        "more after `[DONE]`",
        [steps.chunk("fine"), steps.finish(), steps.done(), steps.chunk("ghost"), steps.done(), steps.end()],
        FINE,
    ),
    both("usage with the text", does.usage_where("early"), FINE, usage=does.TOKENS),
    both("usage with the finish reason", does.usage_where("finish"), FINE, usage=does.TOKENS),
    both("usage after the finish reason", does.usage_where("after"), FINE, usage=does.TOKENS),
    both("usage everywhere", does.usage_where("early", "finish", "after"), FINE, usage=does.TOKENS),
)

TABLE: dict[str, tuple[Row, ...]] = {
    "Connecting": CONNECTING,
    "Silence": SILENCE,
    "Breaking off": BREAKING_OFF,
    "Statuses": STATUSES,
    "Errors under status 200": ERRORS_IN_200,
    "Not what was asked for": NOT_WHAT_WAS_ASKED_FOR,
    "Breaches of HTTP": BREACHES_OF_HTTP,
    "Odd answers": ODD_BUT_COMPLETE,
}


# ------------------------------------------------------------------------------------------------ as a document

DOCUMENT = Path(__file__).parents[2] / "docs" / "faults.md"
_INTRODUCTION = """\
# Faults

What becomes of a request when an engine does something wrong. Every line is tested over real sockets, for chat and
completions, whole and streamed, with a healthy second instance and without. This page is written from the table that
the tests read.

Counted as **failure**: speaks against the instance; five in a row open its breaker, and it is left alone for a moment.
**Neutral**: says nothing about it. After `rate_limited` it is left alone for as long as it asked, at least for the
usual cooldown and at most for a minute. **Success**: the answer went out whole.

*Else* stands before what the caller is told if no other instance can answer. Nothing is seen of an attempt that failed
before the first word; `x-headrace-attempts` tells how many there were, also beside an error. Once a word of a stream
has reached the caller it *breaks off*: an error event ends it, without `[DONE]` and without a finish reason. The
engines here are of unknown make; what a local `vllm`, `sglang` or `llamacpp` breaks off goes on at another one, where
that can be had ([use](use.md)).

*After* names the limit in the section `timeouts` that ends the wait. The codes are explained in [errors](errors.md).
"""


def document() -> str:
    """The table as Markdown."""
    parts = [_INTRODUCTION]
    for title, rows in TABLE.items():
        lines = [_line(row.name, _counted(row), *_told_both(row)) for row in rows]
        header = _line("the engine", "counted as", "a whole answer", "a stream")
        parts.append("\n".join((f"## {title}", "", header, "|---|---|---|---|", *lines, "")))
    return "\n".join(parts)


def _line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _counted(row: Row) -> str:
    causes = dict.fromkeys(fate.cause for fate in (row.whole, row.stream) if fate is not None)
    return " / ".join(
        f"{cause.kind.value}, `{cause.value}`" if cause is not Cause.OK else "success" for cause in causes
    )


def _told_both(row: Row) -> tuple[str, str]:
    if row.whole is None:
        return "(does not apply)", _told(row.stream)
    return _told(row.whole), "the same" if row.stream == row.whole else _told(row.stream)


def _told(fate: Fate) -> str:
    if fate.cause is Cause.OK:
        return "is answered" + (f" after `{fate.limit}`" if fate.limit else "")
    if fate.broken:
        return f"breaks off with `{fate.code}`" + (f" after `{fate.limit}`" if fate.limit else "")
    words = [str(fate.status), f"`{fate.code}`" if fate.code else f"`{fate.kind}` in the engine's own words"]
    if fate.limit:
        words.append(f"after `{fate.limit}`")
    if fate.asked > 1:
        words.append(f"after {fate.asked} attempts")
    if fate.retry_after:
        words.append(f"with `retry-after: {fate.retry_after[-1]}`")
    return ("is answered by another instance, else " if fate.again else "") + " ".join(words)


if __name__ == "__main__":
    DOCUMENT.write_text(document(), encoding="utf-8")
