"""What engines' metrics are taken to say: every engine, every name it ever used, and nothing that is not there."""

from __future__ import annotations

import pytest

from headrace.model import Engine, EngineReport, Instance, ServedModel
from headrace.wire.engine_metrics import LARGEST_PAGE, metrics_requests, reports_metrics
from tests.wire.answers import recorded
from tests.wire.metrics_pages import said, then

# ------------------------------------------------------------------------------------------------------ each engine


@pytest.mark.parametrize(
    ("page", "report"),
    [
        ("llamacpp-metrics-idle.txt", EngineReport(running=0, waiting=0)),
        ("llamacpp-metrics-busy.txt", EngineReport(running=4, waiting=2)),
        ("llamacpp-metrics-after.txt", EngineReport(running=0, waiting=0)),
    ],
)
def test_a_recorded_llamacpp_page_is_read(page: str, report: EngineReport) -> None:
    """What a real server sent gives its slots in use and its deferred requests; it tells nothing of its KV cache."""
    assert said(Engine.LLAMACPP, recorded(page)) == report


def test_llamacpp_tells_its_time_per_token_between_polls() -> None:
    """The mean of what was generated between two recorded pages: seconds divided by tokens."""
    report = then(Engine.LLAMACPP, recorded("llamacpp-metrics-idle.txt"), recorded("llamacpp-metrics-busy.txt"))
    assert report is not None
    assert report.tpot is not None
    assert 0.02 < report.tpot < 0.2


@pytest.mark.parametrize("name", ["vllm:gpu_cache_usage_perc", "vllm:kv_cache_usage_perc"])
def test_vllm_says_its_kv_use_by_either_name(name: str) -> None:
    """A renamed gauge is not an empty cache."""
    assert said(Engine.VLLM, f'{name}{{model_name="m"}} 0.8\n') == EngineReport(kv=0.8)


def test_where_both_names_are_there_the_new_one_counts() -> None:
    """Between two releases a page has both; where the new one is unknown the old one stands in."""
    page = 'vllm:gpu_cache_usage_perc{model_name="m"} 0.3\nvllm:kv_cache_usage_perc{model_name="m"} %s\n'
    assert said(Engine.VLLM, page % "0.8") == EngineReport(kv=0.8)
    assert said(Engine.VLLM, page % "NaN") == EngineReport(kv=0.3)


def test_vllm_before_its_new_core_is_read() -> None:
    """The first labels and names: no `engine`, the old KV gauge."""
    page = (
        'vllm:num_requests_running{model_name="m"} 3.0\n'
        'vllm:num_requests_waiting{model_name="m"} 1.0\n'
        'vllm:gpu_cache_usage_perc{model_name="m"} 0.42\n'
    )
    assert said(Engine.VLLM, page) == EngineReport(running=3, waiting=1, kv=0.42)


def test_several_engines_behind_one_address_are_one_instance() -> None:
    """Running and waiting are summed; of the KV caches the fullest counts, since a mean would hide it."""
    page = ""
    for engine, (running, waiting, kv) in enumerate([(3, 2, 0.9), (5, 0, 0.1)]):
        labels = f'{{engine="{engine}",model_name="m"}}'
        page += f"vllm:num_requests_running{labels} {running}\nvllm:num_requests_waiting{labels} {waiting}\n"
        page += f"vllm:kv_cache_usage_perc{labels} {kv}\n"
    assert said(Engine.VLLM, page) == EngineReport(running=8, waiting=2, kv=0.9)


def test_waiting_by_reason_stands_in_for_waiting() -> None:
    """A page with only the newer gauge gives the sum over its reasons; with both, nothing is counted twice."""
    by_reason = (
        'vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="capacity"} 4\n'
        'vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="deferred"} 1\n'
    )
    assert said(Engine.VLLM, by_reason) == EngineReport(waiting=5)
    assert said(Engine.VLLM, by_reason + 'vllm:num_requests_waiting{engine="0",model_name="m"} 5\n') == EngineReport(
        waiting=5
    )


def test_vllm_tells_the_size_of_its_kv_cache() -> None:
    """Blocks times block size, over all engines; engines that do not know it yet write the word None."""
    gauge = 'vllm:num_requests_running{engine="0"} 0\n'
    info = 'vllm:cache_config_info{block_size="16",cache_dtype="auto",engine="%d",num_gpu_blocks="%s"} 1.0\n'
    for page, tokens in (
        (info % (0, "2756"), 44_096),
        (info % (0, "100") + info % (1, "50"), 2_400),
        (info % (0, "None"), None),
        (info % (0, "100") + info % (1, "None"), None),
        ("", None),
    ):
        report = said(Engine.VLLM, gauge + page)
        assert report is not None
        assert report.kv_tokens == tokens


@pytest.mark.parametrize(
    "name",
    [
        "vllm:inter_token_latency_seconds",
        "vllm:time_per_output_token_seconds",
        "vllm:request_time_per_output_token_seconds",
    ],
)
def test_time_per_token_is_the_mean_since_the_poll_before(name: str) -> None:
    """Under each of its names: unknown at first, then the growth of the sum by that of the count."""
    page = (
        'vllm:num_requests_running{engine="0"} 1\n' + name + '_sum{engine="0"} %s\n' + name + '_count{engine="0"} %s\n'
    )
    for pages, tpot in (
        ([(1.0, 50)], None),
        ([(1.0, 50), (3.0, 100)], 0.04),
        ([(1.0, 50), (1.0, 50)], None),
        ([(1.0, 50), (0.2, 4)], None),
        ([(1.0, 50), (0.2, 4), (0.4, 14)], 0.02),
    ):
        report = then(Engine.VLLM, *(page % numbers for numbers in pages))
        assert report is not None
        assert report.tpot == (None if tpot is None else pytest.approx(tpot))


def test_preemptions_are_those_since_the_poll_before() -> None:
    """Summed over engines; unknown at first and after a restart; an engine that joins counts from its second poll."""
    page = 'vllm:num_requests_running{engine="0"} 1\n'
    one, two = 'vllm:num_preemptions_total{engine="0"} %d\n', 'vllm:num_preemptions_total{engine="1"} %d\n'
    for pages, preempted in (
        ([page + one % 7], None),
        ([page + one % 7, page + one % 7], 0),
        ([page + one % 7 + two % 1, page + one % 9 + two % 4], 5),
        ([page + one % 7, page + one % 1], None),
        ([page + one % 7, page + one % 8 + two % 400], 1),
    ):
        report = then(Engine.VLLM, *pages)
        assert report is not None
        assert report.preemptions == preempted


def test_a_poll_that_says_nothing_forgets_nothing() -> None:
    """Between two good pages an error page does not make the growth of counters unknown."""
    page = "tgi_queue_size 0\ntgi_request_mean_time_per_token_duration_sum %s\n"
    page += "tgi_request_mean_time_per_token_duration_count %s\n"
    report = then(Engine.TGI, page % (1, 10), "<html>oops</html>", page % (2, 20))
    assert report == EngineReport(waiting=0, tpot=0.1)


def test_ranks_of_sglang_show_one_queue() -> None:
    """Tensor-parallel ranks repeat the same numbers; data-parallel ones have queues of their own."""
    page = ""
    for dp, tp, running, waiting, usage in ((0, 0, 4, 7, 0.83), (0, 1, 4, 6, 0.83), (1, 2, 1, 0, 0.2)):
        labels = f'{{dp_rank="{dp}",engine_type="unified",model_name="m",moe_ep_rank="0",pp_rank="0",tp_rank="{tp}"}}'
        page += f"sglang:num_running_reqs{labels} {running}.0\nsglang:num_queue_reqs{labels} {waiting}.0\n"
        page += f"sglang:token_usage{labels} {usage}\nsglang:max_total_num_tokens{labels} 1000\n"
    assert said(Engine.SGLANG, page) == EngineReport(running=5, waiting=7, kv=0.83, kv_tokens=2000)


@pytest.mark.parametrize("whole", ['priority="",', ""])
def test_priorities_of_sglang_are_not_counted_twice(whole: str) -> None:
    """The series without a priority is the sum of the others; only where it is missing they are summed."""
    each = "".join(
        f'sglang:num_running_reqs{{pp_rank="0",priority="{level}",tp_rank="0"}} {count}\n'
        for level, count in ((0, 9), (5, 5))
    )
    total = f'sglang:num_running_reqs{{pp_rank="0",{whole}tp_rank="0"}} 14.0\n'
    assert said(Engine.SGLANG, each + total) == said(Engine.SGLANG, total) == EngineReport(running=14)
    assert said(Engine.SGLANG, each) == EngineReport(running=14)


@pytest.mark.parametrize("name", ["inter_token_latency", "time_per_output_token", "request_time_per_output_token"])
def test_sglang_tells_time_per_token_and_retractions(name: str) -> None:
    """Under the old and the new names of the histogram."""
    page = "sglang:num_queue_reqs 0\n" + f"sglang:{name}_seconds_sum %s\nsglang:{name}_seconds_count %s\n"
    page += 'sglang:num_retracted_requests_total{tp_rank="0"} %s\nsglang:num_retracted_requests_total{tp_rank="1"} %s\n'
    report = then(Engine.SGLANG, page % (1, 10, 3, 3), page % (2, 60, 5, 5))
    assert report == EngineReport(waiting=0, tpot=0.02, preemptions=2)


def test_tgi_is_read() -> None:
    """No labels, no KV gauge; its token budget is the size of its cache."""
    page = "tgi_queue_size 2\ntgi_batch_current_size 1\ntgi_batch_max_total_tokens 20000\n"
    assert said(Engine.TGI, page) == EngineReport(running=1, waiting=2, kv_tokens=20_000)


TRITON = """
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="waiting",version="1"} 1
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="scheduled",version="1"} 3
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="active",version="1"} 4
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="max",version="1"} 512
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="fraction",model="tensorrt_llm",version="1"} 0.6
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="max",model="tensorrt_llm",version="1"} 100
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="tokens_per",model="tensorrt_llm",version="1"} 64
"""


def test_triton_is_read() -> None:
    """One name for many numbers: the label says which; the model is Triton's own name and not the client's."""
    served = (ServedModel(name="llama"),)
    assert said(Engine.TENSORRT, TRITON, served) == EngineReport(running=3, waiting=1, kv=0.6, kv_tokens=6400)


@pytest.mark.parametrize("prefix", ["trtllm_", "trtllm:"])
def test_trtllm_serve_is_read_in_prometheus_text(prefix: str) -> None:
    """Under its own prefix and under the one that Dynamo gave it."""
    page = f"{prefix}num_requests_running 4\n{prefix}num_requests_waiting 1\n{prefix}kv_cache_utilization 0.5\n"
    assert said(Engine.TENSORRT, page) == EngineReport(running=4, waiting=1, kv=0.5)


def test_trtllm_serve_is_read_in_its_own_json() -> None:
    """The last iteration counts; fields that are missing are unknown."""
    cache = '{"maxNumBlocks":200,"usedNumBlocks":50,"freeNumBlocks":150,"tokensPerBlock":32,"cacheHitRate":0.1}'
    first = '{"iter":1,"iterLatencyMS":7.1,"numActiveRequests":9,"numQueuedRequests":9}'
    last = f'{{"iter":2,"numActiveRequests":5,"numQueuedRequests":2,"kvCacheStats":{cache}'
    assert said(Engine.TENSORRT, f" [{first},{last}}}]") == EngineReport(running=5, waiting=2, kv=0.25, kv_tokens=6400)
    scheduled = ',"inflightBatchingStats":{"numScheduledRequests":3,"numContextRequests":1}'
    assert said(Engine.TENSORRT, f"[{last}{scheduled}}}]") == EngineReport(
        running=3, waiting=2, kv=0.25, kv_tokens=6400
    )
    assert said(Engine.TENSORRT, '[{"numActiveRequests":5}]') == EngineReport(running=5)


@pytest.mark.parametrize(
    "body", ["[]", "[{}]", "[", '[{"numActiveRequests":"5"}]', "[1]", "[" * 5000, '[{"numActiveRequests":-1}]']
)
def test_json_that_says_nothing_is_unknown(body: str) -> None:
    """An empty array means that no iteration was seen, not that nothing runs."""
    assert said(Engine.TENSORRT, body) is None


# ------------------------------------------------------------------------------------------------------- which model


def test_only_the_instances_own_models_count() -> None:
    """With two models on a page each instance sees its own, by the name the engine uses for it."""
    page = "".join(
        f'vllm:num_requests_running{{model_name="{model}"}} {running}\n'
        f'vllm:kv_cache_usage_perc{{model_name="{model}"}} {kv}\n'
        for model, running, kv in (("org/a", 3, 0.2), ("org/b", 5, 0.7))
    )
    assert said(Engine.VLLM, page, (ServedModel(name="org/a"),)) == EngineReport(running=3, kv=0.2)
    assert said(Engine.VLLM, page, (ServedModel(name="b", upstream="org/b"),)) == EngineReport(running=5, kv=0.7)
    assert said(Engine.VLLM, page, (ServedModel(name="x-*", upstream="org/*"),)) == EngineReport(running=8, kv=0.7)
    assert said(Engine.VLLM, page, (ServedModel(name="c"),)) is None


def test_another_models_gauge_is_not_taken_for_a_missing_one() -> None:
    """A gauge that only the other model has stays unknown."""
    page = (
        'vllm:num_requests_running{model_name="a"} 3\nvllm:num_requests_running{model_name="b"} 5\n'
        'vllm:num_requests_waiting{model_name="b"} 9\n'
    )
    assert said(Engine.VLLM, page, (ServedModel(name="a"),)) == EngineReport(running=3)


def test_a_page_with_one_model_speaks_for_the_instance() -> None:
    """Engines answer to several names and report under one."""
    page = 'vllm:num_requests_running{model_name="meta/llama"} 3\n'
    assert said(Engine.VLLM, page, (ServedModel(name="llama"),)) == EngineReport(running=3)


# --------------------------------------------------------------------------------------------------- what it trusts


def test_openmetrics_is_read_as_well() -> None:
    """No HELP or TYPE, carriage returns, creation times, timestamps, exemplars and the end mark change nothing."""
    page = (
        'vllm:num_requests_running{engine="0",model_name="m"} 3.0 1764504000.123\r\n'
        'vllm:num_preemptions_total{engine="0"} 5 # {trace_id="a} 9"} 1.0 1764504000\r\n'
        'vllm:num_preemptions_created{engine="0"} 1.7e9\r\n'
        'vllm:num_requests_running_created{engine="0"} 1.7e9\r\n'
        'vllm:num_requests_waiting{engine="0",model_name="m"} NaN\r\n'
        "vllm:kv_cache_usage_perc 2.5e-1\r\n"
        "# EOF\r\n"
    )
    assert said(Engine.VLLM, page) == EngineReport(running=3, kv=0.25)
    assert then(Engine.VLLM, page, page) == EngineReport(running=3, kv=0.25, preemptions=0)


def test_labels_may_hold_anything() -> None:
    """Quotes, braces, backslashes, line ends and other names inside a label are text."""
    model = r"a\"} 9\\\n{b=,"
    page = (
        f'vllm:num_requests_running{{ model_name = "{model}" , engine="0", }}\t3\n'
        'vllm:num_requests_running{model_name="vllm:num_requests_running 8"} 5'
    )
    assert said(Engine.VLLM, page, (ServedModel(name='a"} 9\\\n{b=,'),)) == EngineReport(running=3)


@pytest.mark.parametrize(
    "page",
    [
        "",
        "\n\n",
        "# HELP vllm:num_requests_running Number.\n# TYPE vllm:num_requests_running gauge\n",
        "<!doctype html><title>vllm:num_requests_running 3</title>",
        '{"error": "not found"}',
        "process_cpu_seconds_total 3\nvllm:num_requests_runningx 4\nxvllm:num_requests_running 4\n",
        " vllm:num_requests_running",
        "vllm:num_requests_running",
        "vllm:num_requests_running{",
        'vllm:num_requests_running{engine="0"',
        "vllm:num_requests_running three",
        "vllm:num_requests_running 3 of 4",
        "vllm:num_requests_running 3_0",
        "vllm:num_requests_running -1",
        "vllm:num_requests_running +Inf",
        "vllm:num_requests_running NaN",
        "vllm:num_requests_running 1e999",
        "vllm:kv_cache_usage_perc 80",
        "vllm:kv_cache_usage_perc -0.1",
        'vllm:cache_config_info{block_size="16",num_gpu_blocks="100"} 1\nvllm:num_preemptions_total 4\n',
        "llamacpp:requests_processing 3\n",
    ],
)
def test_what_is_not_said_is_unknown(page: str) -> None:
    """No known name, or no number that can be meant: nothing is known. Never zeros."""
    assert said(Engine.VLLM, page) is None


@pytest.mark.parametrize("bad", ["NaN", "-1", "garbled", "+Inf", '{engine="1" 4'])
def test_one_unreadable_series_makes_a_sum_unknown(bad: str) -> None:
    """The rest alone would make the instance look less busy than it is; other signals stay."""
    page = 'vllm:num_requests_running{engine="0"} 3\nvllm:num_requests_waiting{engine="0"} 2\n'
    line = bad if bad.startswith("{") else f'{{engine="1"}} {bad}'
    assert said(Engine.VLLM, page + f"vllm:num_requests_waiting{line}\n") == EngineReport(running=3)


def test_the_same_series_twice_is_unknown() -> None:
    """Which of the two would count nobody can say."""
    page = 'vllm:num_requests_running{engine="0"} 3\nvllm:num_requests_running{engine="0"} 4\n'
    assert said(Engine.VLLM, page) is None


def test_a_page_is_bounded() -> None:
    """Neither a huge page nor one with thousands of series of one name is added up."""
    line = "vllm:num_requests_running 3\n"
    assert said(Engine.VLLM, line + "#" * LARGEST_PAGE) is None
    many = "".join(f'vllm:num_requests_running{{engine="{number}"}} 1\n' for number in range(1000))
    assert said(Engine.VLLM, many) is None


def test_engines_without_metrics_are_known() -> None:
    """Asking for the metrics of an engine that has none is a mistake of the caller's."""
    others = [engine for engine in Engine if not reports_metrics(engine)]
    assert set(others) == {Engine.OPENAI, Engine.OLLAMA, Engine.LMSTUDIO, Engine.ECHO, Engine.WORKER}
    for engine in others:
        with pytest.raises(ValueError, match=engine.value):
            said(engine, "x 1\n")
        with pytest.raises(ValueError, match=engine.value):
            metrics_requests(Instance(id="i", engine=engine, address="http://h"), None, None)
