"""The configuration: what is accepted, what wins, what is refused and how it says so."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.config import Config, example_yaml, is_loopback, load, schema_json
from headrace.config.instances import EngineName
from headrace.config.reading import parsed, validated
from headrace.config.wording import FORMS, INSTANCE_ID
from headrace.core.limits import LimitRule
from headrace.core.settings import PolicyName, Settings, Strategy
from headrace.errors import ConfigError
from headrace.model import Engine, ServedModel, ServiceClass, Tier
from tests.written import Written, refusal

ROOT = Path(__file__).parent.parent


# -------------------------------------------------------------------------------------------------------- defaults


def test_an_empty_file_gives_the_defaults(written: Written) -> None:
    """Every key is optional, and no file is the same as an empty one."""
    assert load(written(""), {}) == load(None, {}) == Config()


def test_every_kind_of_engine_can_be_configured() -> None:
    """What the gateway speaks to can be named in the file; a worker is the library's own."""
    assert set(get_args(EngineName)) == {engine.value for engine in Engine if engine is not Engine.WORKER}


def test_defaults_are_those_of_the_scheduler() -> None:
    """The file's defaults and the scheduler's own cannot drift apart."""
    assert Config().scheduler_settings() == Settings()


def test_the_documented_shape_loads(written: Written) -> None:
    """The file shown in the documentation means what it says."""
    path = written(
        """
server: {host: 127.0.0.1, port: 8080}
scheduling: {policy: fair, queue_size: 512, per_user_queue: 256}
instances:
  - {id: gpu-1, address: "http://127.0.0.1:8001", engine: vllm, models: [qwen3-1.7b], max_concurrent: 4, tier: local}
  - {id: cloud, address: "https://api.example.com", engine: openai, models: ["*"], tier: remote, api_key_env: CLOUD_KEY}
routing: {max_retries: 2, retry_on_timeout: true, retry_on_5xx: true, retry_on_connection: true}
load_balancer: {strategy: weighted, weights: {speed: 1.0, reliability: 1.0, load: 1.0}, cooldown_seconds: 5.0}
circuit_breaker: {failure_threshold: 5, recovery_timeout: 60}
health_check: {interval_seconds: 10.0, timeout_seconds: 5.0, unhealthy_threshold: 3, deep_check_interval: 30}
timeouts: {connect: 5, first_token: 120, idle: 60, attempt: 600, queue: 60}
dedup: {mode: in_flight, ttl_seconds: 300, max_entries: 10000, scope: tenant}
dead_letters: {capacity: 1000, path: headrace.db}
"""
    )
    config = load(path, {"CLOUD_KEY": "k-1"})
    gpu, cloud = config.model_instances()
    assert (gpu.id, gpu.engine, gpu.models, gpu.max_concurrent) == (
        "gpu-1",
        Engine.VLLM,
        (ServedModel(name="qwen3-1.7b"),),
        4,
    )
    assert (cloud.tier, cloud.window_tokens, gpu.window_tokens) == (Tier.REMOTE, None, 3072)
    assert config.secrets() == {"cloud": "k-1"}
    assert config.scheduler_settings().routing.strategy is Strategy.WEIGHTED


@pytest.mark.parametrize(
    ("said", "most", "adaptive"),
    [("", 10, False), ("max_concurrent: 40, adaptive: true", 40, True), ("max_concurrent: auto", 256, True)],
)
def test_an_in_flight_limit_is_fixed_or_found(written: Written, said: str, most: int, adaptive: bool) -> None:
    """A number is the limit, or with `adaptive` its bound; `auto` needs none."""
    path = written(f"instances: [{{address: 'http://127.0.0.1:8001', {said}}}]")
    (instance,) = load(path, {}).model_instances()
    assert (instance.max_concurrent, instance.adaptive) == (most, adaptive)


def test_numbers_reach_the_scheduler(written: Written) -> None:
    """Each section that concerns the scheduler ends up in its settings."""
    path = written(
        """
scheduling:
  policy: fifo
  per_user_in_flight: 3
  weights: {classes: {batch: 0.5}, tenants: {lab: 2}, users: {lab/ann: 4}}
routing: {max_retries: 0}
timeouts: {queue: 7, queue_batch: 9}
limits: {per_user: {requests_per_minute: 10}, per_tenant: {}}
"""
    )
    settings = load(path, {}).scheduler_settings()
    assert settings.fairness.policy is PolicyName.FIFO
    assert settings.fairness.user_in_flight == 3
    assert settings.fairness.class_weights[ServiceClass.BATCH] == 0.5
    assert (settings.fairness.tenant_weights, settings.fairness.user_weights) == ({"lab": 2.0}, {"lab/ann": 4.0})
    assert settings.recovery.max_attempts == 1
    assert (settings.queue.timeouts[ServiceClass.NORMAL], settings.queue.timeouts[ServiceClass.BATCH]) == (7.0, 9.0)
    assert settings.limits.per_user == LimitRule(requests_per_minute=10)
    assert settings.limits.per_tenant is None


# ------------------------------------------------------------------------------------------------------- instances


def test_models_have_short_forms(written: Written) -> None:
    """A name, a star, an alias and a mapping all say which models an instance serves."""
    path = written('instances: [{address: "http://h:1", models: [a, "b=c/d", {name: "x-*", upstream: "y-*"}]}]')
    (instance,) = load(path, {}).model_instances()
    assert instance.models == (
        ServedModel(name="a"),
        ServedModel(name="b", upstream="c/d"),
        ServedModel(name="x-*", upstream="y-*"),
    )
    assert instance.id == "openai-1"


@pytest.mark.parametrize(
    ("address", "clean"),
    [
        ("http://127.0.0.1:8001/", "http://127.0.0.1:8001"),
        ("http://Host:80/v1/", "http://host"),
        ("https://api.example.com/openai/v1", "https://api.example.com/openai"),
        ("http://[::1]:8000", "http://[::1]:8000"),
    ],
)
def test_addresses_have_one_spelling(written: Written, address: str, clean: str) -> None:
    """The base URL may be written as the documentation of any client writes it."""
    (instance,) = load(written(f"instances: [{{address: '{address}'}}]"), {}).model_instances()
    assert instance.address == clean


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[{id: a, engine: echo}, {id: a, engine: echo}]", "the instance id 'a' is used twice"),
        (
            '[{address: "http://h"}, {address: "http://H:80/v1"}]',
            "the model '*' at http://h is listed twice at the same address; one of them is enough",
        ),
        ("[{engine: echo, models: [a, a]}]", "instances[0]: the model 'a' is named twice"),
        ("[{engine: vllm}]", "instances[0]: an instance with the engine vllm needs an address"),
        (
            "[{engine: ollama, address: 'http://h', forward_priority: true}]",
            "instances[0]: forward_priority is for vllm and sglang; ollama has no priorities",
        ),
        ('[{engine: echo, address: "http://h"}]', "instances[0]: the echo engine is built in and has no address"),
        ('[{address: "h:80"}]', "instances[0].address: the address must begin with http:// or https://"),
        (
            '[{address: "http://u:p4ss@h"}]',
            (
                "instances[0].address: the address must not hold a user or password; "
                "name the key's variable in api_key_env"
            ),
        ),
        ('[{address: "http://h:p0rt"}]', "instances[0].address: the address is no URL"),
        ('[{address: "http://h:0"}]', "instances[0].address: the address has the port 0, at which nothing can listen"),
        *(
            (
                f'[{{address: "{address}"}}]',
                "instances[0].address: the address must not hold spaces or control characters",
            )
            for address in ("http://h/a b", "http://h/\\r\\nx: y", "http://h\\t:1", "http://h/\\0", "http://a b/")
        ),
        (
            '[{address: "http://h/ü"}]',
            "instances[0].address: the path of the address must be ASCII; write other characters as %C3%BC",
        ),
        (f'[{{address: "http://h/{"x" * 2048}"}}]', "instances[0].address: the address is longer than 2048 characters"),
        ("[{engine: echo, id: a b}]", f"instances[0].id: {FORMS[INSTANCE_ID]}"),
        (
            "[{engine: echo, models: []}]",
            "instances[0].models: must not be empty",
        ),
        (
            "[{engine: echo, models: ['a=b*']}]",
            "instances[0].models[0]: `*` in upstream stands for what the `*` of name matched, but name has none",
        ),
    ],
)
def test_instances_that_cannot_be_meant_are_refused(written: Written, text: str, message: str) -> None:
    """Each mistake about an engine is told with its place and no secret."""
    assert refusal(written, f"instances: {text}") == message


def test_a_star_beside_a_name_is_a_warning(written: Written) -> None:
    """A wildcard and an exact name at one address work, but are pointed out."""
    path = written('instances: [{id: a, address: "http://h"}, {id: b, address: "http://h", models: [m]}]')
    (warning,) = load(path, {}).warnings()
    assert warning.startswith("http://h is listed with `*` and again with m: ")


def test_a_window_can_be_set_or_taken_away(written: Written) -> None:
    """`window_tokens` is automatic, a number, or null for no such gate."""
    path = written(
        'instances: [{address: "http://a", window_tokens: 512},'
        ' {address: "http://b", window_tokens: null}, {engine: echo}]'
    )
    assert [instance.window_tokens for instance in load(path, {}).model_instances()] == [512, None, None]


# ---------------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("scheduling: {polcy: fair}", "scheduling.polcy: unknown key; did you mean policy?"),
        ("sheduling: {policy: fair}", "sheduling: unknown key; did you mean scheduling?"),
        ("port: 1", "port: unknown key; did you mean server.port?"),
        ("scheduling: {weights: {user: {a: 1}}}", "scheduling.weights.user: unknown key; did you mean users?"),
        (
            "scheduling: {prices: {gpt-4o: {promt: 1}}}",
            "scheduling.prices.gpt-4o.promt: unknown key; did you mean prompt?",
        ),
        ("instances: [{adress: x}]", "instances[0].adress: unknown key; did you mean address?"),
        ("dedup: {zzz: 1}", "dedup.zzz: unknown key; known here: mode, ttl_seconds, max_entries, max_bytes, scope"),
        ("server: {port: 70000}", "server.port: should be less than or equal to 65535"),
        ("server: {port: many}", "server.port: should be a whole number"),
        ("server: {insecure: perhaps}", "server.insecure: should be true or false"),
        ("timeouts: {idle: long}", "timeouts.idle: should be a number"),
        (
            "routing: {spill_after_seconds: [1]}",
            "routing.spill_after_seconds: should be a number or a mapping of keys",
        ),
        ("models: &a {m: [*a]}", "an alias (*name) stands within what it is the name of in line 1, column 9"),
        ("models: {m: &a [*a]}", "an alias (*name) stands within what it is the name of in line 1, column 13"),
        ("server: 3", "server: should be a mapping of keys"),
        ("instances: {a: 1}", "instances: should be a list"),
        ("instances: [{engine: echo, models: [{upstream: a}]}]", "instances[0].models[0].name: is missing"),
        ("timeouts: {idle: .inf}", "timeouts.idle: should be a finite number"),
        ("server: {port: 1, port: 2}", "the key 'port' is given twice in line 1, column 19"),
        ("- 1", "must be a mapping of sections, as `server: {port: 8080}`"),
    ],
)
def test_mistakes_name_the_key_and_the_nearest_known_one(written: Written, text: str, message: str) -> None:
    """A person can mend the file from the message alone."""
    assert refusal(written, text) == message


def test_all_mistakes_are_told_at_once(written: Written) -> None:
    """Two mistakes take one run to find, not two."""
    message = refusal(written, "server: {prt: 1}\ndedup: {mod: off}")
    assert "server.prt" in message
    assert "dedup.mod" in message


def test_broken_yaml_names_the_line(written: Written) -> None:
    """What is no YAML is refused with its line."""
    assert "in line 2" in refusal(written, "server:\n  port: ]\n")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """A path that does not exist is an error of one sentence."""
    with pytest.raises(ConfigError, match=r"absent\.yaml: cannot be read"):
        load(tmp_path / "absent.yaml", {})


def test_files_have_a_largest_size(written: Written) -> None:
    """A file that cannot be a configuration is not read into memory whole."""
    assert "is larger than" in refusal(written, "#" * (1024 * 1024 + 1))


@pytest.mark.parametrize(
    "each", ["[*l{0}, *l{0}, *l{0}]", "{{a: *l{0}, b: *l{0}, c: *l{0}}}", "{{<<: [*l{0}, *l{0}, *l{0}]}}"]
)
def test_aliases_count_as_what_they_stand_for(written: Written, each: str) -> None:
    """A few lines of aliases of aliases are refused before they fill the memory, from a file and from a variable."""
    levels = "".join(f", l{number + 1}: &l{number + 1} {each.format(number)}" for number in range(60))
    bomb = f"{{l0: &l0 {{x: y}}{levels}}}"
    assert "with its aliases spelt out, this is larger than 1048576 bytes in line 1" in refusal(written, bomb)
    with pytest.raises(ConfigError, match="HEADRACE_SERVER__PORT: the value is not YAML"):
        load(None, {"HEADRACE_SERVER__PORT": bomb})


def test_aliases_save_writing(written: Written) -> None:
    """What is meant twice is written once, also as keys that a mapping takes over."""
    text = "instances: [&one {id: a, address: 'http://h:1', tier: remote}, {<<: *one, id: b, address: 'http://h:2'}]"
    assert [(each.id, each.tier) for each in load(written(text), {}).instances] == [("a", "remote"), ("b", "remote")]


def test_a_bare_off_is_off(written: Written) -> None:
    """YAML reads `off` as false; `mode: off` still means off."""
    assert load(written("dedup: {mode: off}"), {}).dedup.mode == "off"


@given(st.binary(max_size=200))
def test_any_bytes_load_or_are_refused(data: bytes) -> None:
    """No file makes the reader fail in any other way than ConfigError."""
    with contextlib.suppress(ConfigError):
        validated(parsed(data, "any"), "any")


# ------------------------------------------------------------------------------------------------------- documents


def test_the_example_is_generated() -> None:
    """The example file holds every key; `make generate` writes it anew."""
    assert (ROOT / "examples" / "headrace.yaml").read_text(encoding="utf-8") == example_yaml()


def test_the_schema_is_generated() -> None:
    """The published schema is the code's; `make generate` writes it anew."""
    assert (ROOT / "schema" / "headrace.schema.json").read_text(encoding="utf-8") == schema_json()


def test_the_example_loads_to_the_defaults(written: Written) -> None:
    """What the example shows as defaults are the defaults."""
    assert load(written(example_yaml()), {}) == Config()


def test_the_commented_instance_loads(written: Written) -> None:
    """The instance shown in the example works once it is uncommented."""
    text = example_yaml()
    begin = text.index("# instances:\n")
    block = text[begin : text.index("\n\n", begin)]
    uncommented = "\n".join(line.removeprefix("# ") for line in block.splitlines())
    (instance,) = load(written(uncommented), {}).model_instances()
    assert (instance.id, instance.window_tokens) == ("gpu-1", 3072)


@pytest.mark.parametrize(
    ("host", "answer"),
    [("127.0.0.1", True), ("127.8.8.8", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("gpu", False)],
)
def test_loopback_is_recognised(host: str, answer: bool) -> None:
    """Only addresses that no other machine reaches count as loopback."""
    assert is_loopback(host) is answer


# --------------------------------------------------------------------------------------------------------- metrics


def test_metrics_reach_the_instances_and_the_scheduler(written: Written) -> None:
    """An instance may name the place of its metrics; three polls unanswered make them stale."""
    path = written(
        """
instances:
  - {address: "http://h:9000", engine: tensorrt, metrics: "http://h:8002/metrics"}
  - {address: "http://h:30000", engine: sglang, metrics: /own}
  - {address: "http://h:3000", engine: tgi}
metrics: {poll_seconds: 1}
"""
    )
    config = load(path, {})
    triton, sglang, tgi = config.model_instances()
    assert (triton.engine, triton.metrics) == (Engine.TENSORRT, "http://h:8002/metrics")
    assert (sglang.engine, sglang.metrics) == (Engine.SGLANG, "/own")
    assert (tgi.engine, tgi.metrics, tgi.window_tokens) == (Engine.TGI, None, 3072)
    assert config.scheduler_settings().metrics.stale_after == 3.0


@pytest.mark.parametrize("place", ["metrics", "ftp://h/m", "http://user:secret@h/m", "/m m", "/m#x", "http://h", ""])
def test_a_place_of_metrics_is_a_path_or_a_url(written: Written, place: str) -> None:
    """Anything else is refused at the start, not at the first poll."""
    assert refusal(written, f"metrics: {{path: '{place}'}}").startswith("metrics.path: ")


@pytest.mark.parametrize(
    ("entry", "resumes"),
    [
        ({"engine": "vllm"}, True),
        ({"engine": "sglang"}, True),
        ({"engine": "llamacpp"}, True),
        ({"engine": "vllm", "tier": "remote"}, False),
        ({"engine": "openai"}, False),
        ({"engine": "ollama"}, False),
        ({"engine": "vllm", "resume": False}, False),
        ({"engine": "vllm", "resume": "off"}, False),
        ({"engine": "openai", "resume": "on"}, True),
        ({"engine": "vllm", "tier": "remote", "resume": True}, True),
    ],
)
def test_broken_streams_go_on_at_local_engines_that_can_do_it(entry: dict[str, object], resumes: bool) -> None:
    """Unless the file says otherwise, which a bare YAML `on` or `off` does as well as a word."""
    config = Config.model_validate({"instances": [{"address": "http://x:1", **entry}]})
    assert config.model_instances()[0].resume is resumes


def test_an_engine_that_cannot_go_on_is_not_told_to() -> None:
    """Said at load, by name."""
    with pytest.raises(ValueError, match="resume cannot be on: ollama"):
        Config.model_validate({"instances": [{"address": "http://x:1", "engine": "ollama", "resume": True}]})
