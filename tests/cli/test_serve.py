"""`headrace serve`: what it hands to the server, and the process as a person sees it."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from headrace.cli import Refused
from headrace.cli.serve import serve, server_settings
from headrace.config import Config
from headrace.server import ServerSettings
from tests.patience import GUARD


def test_defaults_are_those_of_the_server() -> None:
    """The file's defaults and the front door's own cannot drift apart."""
    assert server_settings(Config()) == ServerSettings()


def test_files_of_tls_are_used_or_refused(tmp_path: Path) -> None:
    """A certificate makes the front door speak TLS; what cannot be used is a sentence at the start."""
    both = tmp_path / "both.pem"
    trustme.CA().issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(both)
    given = Config.model_validate({"server": {"tls_certificate": str(both)}})
    assert server_settings(given).tls is not None
    for section, told in (
        ({"tls_certificate": str(tmp_path / "none.pem")}, "cannot be used .No such file"),
        ({"tls_certificate": str(both), "tls_key": __file__}, "cannot be used"),
        ({"tls_key": str(both)}, "belongs to a server.tls_certificate"),
    ):
        with pytest.raises(Refused, match=told):
            server_settings(Config.model_validate({"server": section}))


def test_a_port_in_use_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second gateway on one port is a sentence, not a traceback."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HEADRACE_CONFIG", raising=False)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(Refused, match=rf"cannot listen on 127\.0\.0\.1:{port} \(.*--port"):
            serve(engine="echo", port=port)


@pytest.fixture
def process(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A gateway in a process of its own, in an empty directory and an empty environment."""
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    command = [sys.executable, "-c", "from headrace.cli import main; main()", "serve", "--port", "0"]
    with subprocess.Popen(command, cwd=tmp_path, env=env, stdout=subprocess.PIPE, text=True) as running:
        try:
            yield running
        finally:
            running.kill()


def test_it_says_where_it_listens_and_stops_well(process: subprocess.Popen[str]) -> None:
    """With nothing configured it echoes, says so, answers the line it prints to try, and ends with 0 on SIGTERM."""
    assert process.stdout is not None
    lines: list[str] = []
    for line in process.stdout:
        lines.append(line)
        if line.startswith("  curl"):
            break
    text = "".join(lines)
    assert "echo: echo, built in, models echo" in text
    found = re.search(r"Listening on http://127\.0\.0\.1:(\d+) ", text)
    assert found is not None
    body = re.search(r"-d '(.*)'", lines[-1])
    assert body is not None
    connection = http.client.HTTPConnection("127.0.0.1", int(found.group(1)), timeout=GUARD)
    connection.request("POST", "/v1/chat/completions", body.group(1), {"content-type": "application/json"})
    answer = json.loads(connection.getresponse().read())
    connection.close()
    assert "Hello" in answer["choices"][0]["message"]["content"]
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=GUARD) == 0
