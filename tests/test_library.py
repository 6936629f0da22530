"""What a program gets from `import headrace`."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import headrace


def run(program: str) -> str:
    """The output of a program of its own."""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    return result.stdout


def test_the_library_needs_no_server() -> None:
    """Using a pipeline imports neither the HTTP client nor the server, the configuration or a database."""
    program = textwrap.dedent("""
        import sys
        from headrace import CircuitBreaker, Deduplicator, EchoWorker, Pipeline, RateLimiter, RetryPolicy
        heavy = ("aiohttp", "starlette", "uvicorn", "pydantic", "sqlalchemy", "prometheus_client", "typer", "yaml")
        print([name for name in heavy if name in sys.modules])
    """)
    assert run(program) == "[]\n"


def test_importing_the_package_alone_loads_nothing() -> None:
    """Names are loaded when they are used, so that the pure rooms stay pure and commands start quickly."""
    program = 'import sys, headrace; print([name for name in sys.modules if name.startswith("headrace.")])'
    assert run(program) == "[]\n"


def test_every_public_name_is_there_and_documented() -> None:
    """`__all__` is what there is; each name has a docstring; anything else is an AttributeError."""
    for name in headrace.__all__:
        value = getattr(headrace, name)
        assert name == "__version__" or value.__doc__, name
    assert set(headrace.__all__) <= set(dir(headrace))
    assert not hasattr(headrace, "Manager")
