"""What no page of metrics can do: harm, invented numbers, a loop that is held up; and where pages are asked for."""

from __future__ import annotations

import timeit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.model import Engine, EngineReport, Instance
from headrace.wire.engine_metrics import Previous, metrics_requests, read_metrics
from headrace.wire.engine_metrics.vocabulary import VOCABULARIES
from tests.wire.metrics_pages import ANY, KINDS, said

# -------------------------------------------------------------------------------------------------------------- fuzz

LINES = st.sampled_from(
    [
        *(f"{signal.name} " for names in VOCABULARIES.values() for signal in (*names.running, *names.kv)),
        *(f"{name} " for names in VOCABULARIES.values() for name in names.preemptions),
        'vllm:num_requests_running{engine="0",model_name="m"}',
        "# TYPE ",
        "{",
        "}",
        '"',
        "\\",
        " ",
        "\n",
        "\r\n",
        "1",
        "1e5",
        "NaN",
        "=",
        ",",
        "[{",
        '"numActiveRequests":',
        "\x00",
        "é",
    ]
)
PAGES = st.one_of(st.binary(max_size=300), st.lists(LINES, max_size=40).map(lambda parts: "".join(parts).encode()))


@given(st.sampled_from(KINDS), st.lists(PAGES, min_size=1, max_size=3))
def test_no_page_does_harm(engine: Engine, pages: list[bytes]) -> None:
    """Whatever comes, nothing is raised, and what is reported is a number that an engine could mean."""
    previous = Previous()
    for page in pages:
        report, previous = read_metrics(engine, page, ANY, previous)
        if report is not None:
            counts = (report.running, report.waiting, report.tpot, report.preemptions, report.kv_tokens)
            assert all(count is None or 0 <= count < float("inf") for count in counts)
            assert report.kv is None or 0 <= report.kv <= 1
            assert (report.running, report.waiting, report.kv) != (None, None, None)


@given(st.sampled_from(KINDS), st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\n\r"), max_size=80))
def test_numbers_are_never_invented(engine: Engine, noise: str) -> None:
    """Lines of other names, comments and text between the wanted ones change nothing."""
    names = VOCABULARIES[engine]
    signal = names.waiting[0]
    line = f"{signal.name} 7\n"
    around = f'# {noise}\nother_{"x"}{{a="b"}} 4\n'
    assert said(engine, around + line + around) == said(engine, line) == EngineReport(waiting=7)
    assert said(engine, around) is None


@given(st.integers(0, 300))
def test_a_cut_page_says_no_more_than_the_whole(cut: int) -> None:
    """Where a page breaks off, what is reported comes from lines that were there; a number may only be cut short."""
    whole = (
        'vllm:num_requests_running{engine="0"} 3\nvllm:num_requests_waiting{engine="0"} 5\nvllm:kv_cache_usage_perc 1\n'
    )
    report = said(Engine.VLLM, whole[:cut])
    if report is not None:
        assert (report.running or 3, report.waiting or 5, report.kv or 1) == (3, 5, 1)


# ------------------------------------------------------------------------------------------------------------- where


@pytest.mark.parametrize(
    ("instance", "path", "places"),
    [
        (Instance(id="i", engine=Engine.VLLM, address="http://h:8000"), None, ["http://h:8000/metrics"]),
        (Instance(id="i", engine=Engine.VLLM, address="http://h:8000/v1"), None, ["http://h:8000/metrics"]),
        (Instance(id="i", engine=Engine.VLLM, address="https://h/gpu/v1/"), None, ["https://h/gpu/metrics"]),
        (Instance(id="i", engine=Engine.VLLM, address="http://h"), "/m", ["http://h/m"]),
        (Instance(id="i", engine=Engine.VLLM, address="http://h", metrics="/own"), "/m", ["http://h/own"]),
        (
            Instance(id="i", engine=Engine.TENSORRT, address="http://h:9000"),
            None,
            ["http://h:9000/prometheus/metrics", "http://h:9000/metrics"],
        ),
        (
            Instance(id="i", engine=Engine.TENSORRT, address="http://h:9000", metrics="http://h:8002/metrics?a=b"),
            None,
            ["http://h:8002/metrics?a=b"],
        ),
        (Instance(id="i", engine=Engine.TGI, address="http://h", metrics="http://h:9"), None, ["http://h:9/"]),
    ],
)
def test_metrics_have_their_place(instance: Instance, path: str | None, places: list[str]) -> None:
    """At the server's root, at the configured path, or at a URL of their own; the instance's says most."""
    asked = metrics_requests(instance, "sk-own", path)
    assert [address + request.path for address, request in asked] == places
    for _, request in asked:
        assert (request.method, request.body) == ("GET", b"")
        assert ("authorization", "Bearer sk-own") in request.headers
    assert all("authorization" not in dict(request.headers) for _, request in metrics_requests(instance, None, path))


def large_page() -> bytes:
    """As many lines as a vLLM with one engine sends."""
    labels = 'engine="0",model_name="meta-llama/Llama-3.1-8B-Instruct"'
    lines = [f"vllm:num_requests_running{{{labels}}} 3.0", f"vllm:num_requests_waiting{{{labels}}} 0.0"]
    for number in range(20):
        name = f"vllm:request_histogram_{number}_seconds"
        lines += [f"# HELP {name} Histogram of something.", f"# TYPE {name} histogram"]
        lines += [f'{name}_bucket{{{labels},le="{bound}.0"}} 300.0' for bound in range(45)]
        lines += [f"{name}_sum{{{labels}}} 12.5", f"{name}_count{{{labels}}} 300.0"]
    return "\n".join(lines).encode() + b"\n"


@pytest.mark.bench
def test_a_page_of_a_thousand_lines_takes_under_a_millisecond() -> None:
    """Four polls a second of twenty engines stay in the noise of one core."""
    page = large_page()
    assert page.count(b"\n") >= 980
    assert said(Engine.VLLM, page) == EngineReport(running=3, waiting=0)
    assert min(timeit.repeat(lambda: said(Engine.VLLM, page), number=10, repeat=5)) / 10 < 0.001
