"""What engines speak, one file each: how to ask them, and how to read what they answer."""

from headrace.model import Engine
from headrace.wire.adapters.contract import Adapter, Decoder, EngineRequest
from headrace.wire.adapters.llamacpp import llamacpp
from headrace.wire.adapters.lmstudio import lmstudio
from headrace.wire.adapters.ollama import OllamaAdapter
from headrace.wire.adapters.openai import OpenAIAdapter
from headrace.wire.adapters.sglang import sglang
from headrace.wire.adapters.tensorrt import tensorrt
from headrace.wire.adapters.tgi import tgi
from headrace.wire.adapters.vllm import vllm

__all__ = ["GOING_ON", "Adapter", "Decoder", "EngineRequest", "adapter_for"]

GOING_ON = frozenset({Engine.VLLM, Engine.SGLANG, Engine.LLAMACPP, Engine.OPENAI})
"""Engines that can be asked for the rest of an answer; of those called `openai` some understand it and some do not."""

_ADAPTERS: dict[Engine, Adapter] = {
    Engine.OPENAI: OpenAIAdapter(),
    Engine.VLLM: vllm(),
    Engine.SGLANG: sglang(),
    Engine.TGI: tgi(),
    Engine.TENSORRT: tensorrt(),
    Engine.LLAMACPP: llamacpp(),
    Engine.OLLAMA: OllamaAdapter(),
    Engine.LMSTUDIO: lmstudio(),
}


def adapter_for(engine: Engine) -> Adapter:
    """The dialect of `engine`.

    Raises:
        ValueError: the engine runs in the gateway's own process and is not spoken to over a wire (echo, worker).
    """
    if engine not in _ADAPTERS:
        raise ValueError(f"engine {engine} is not reached over a wire")
    return _ADAPTERS[engine]
