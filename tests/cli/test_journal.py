"""`headrace serve --journal`: the file is there when the gateway has stopped, and a bad place is told at the start."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.cli import Refused
from headrace.cli.serve import serve
from headrace.cli.serve_workers import journal_of
from headrace.sim.trace import read
from tests.patience import GUARD


def test_a_served_request_is_in_the_journal(tmp_path: Path) -> None:
    """One answered request through a real gateway, stopped by SIGTERM: a header and a line that can be replayed."""
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    command = [
        sys.executable,
        "-c",
        "from headrace.cli import main; main()",
        "serve",
        "--engine",
        "echo",
        "--port",
        "0",
    ]
    command += ["--journal", "traffic.ndjson"]
    with subprocess.Popen(command, cwd=tmp_path, env=env, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        port = next(
            int(found.group(1)) for line in process.stdout if (found := re.search(r"127\.0\.0\.1:(\d+) ", line))
        )
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=GUARD)
        body = json.dumps({"model": "echo", "messages": [{"role": "user", "content": "MY SECRET"}], "max_tokens": 9})
        headers = {"content-type": "application/json", "x-headrace-user": "ann"}
        connection.request("POST", "/v1/chat/completions", body, headers)
        assert connection.getresponse().status == 200
        connection.close()
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=GUARD) == 0
    text = (tmp_path / "traffic.ndjson").read_text(encoding="utf-8")
    header, line = map(json.loads, text.splitlines())
    assert header["headrace_journal"] == 1
    assert (line["ending"], line["output_cap"], line["instance"]) == ("answered", 9, "echo")
    assert "SECRET" not in text
    assert "ann" not in line["user"]
    assert len(read("traffic.ndjson", "headrace", tmp_path)) == 1


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything listens, in one sentence."""
    monkeypatch.delenv("HEADRACE_CONFIG", raising=False)
    with pytest.raises(Refused, match=r"cannot write the journal .*: No such file"):
        serve(engine="echo", port=0, journal=tmp_path / "no" / "j")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux deals connections out to processes")
def test_workers_have_a_file_each_and_one_salt(tmp_path: Path) -> None:
    """So that put together, as by `cat`, they speak of the same users; no file is made that nobody writes to."""
    for worker in range(2):
        assert journal_of(tmp_path / "traffic.ndjson", worker, plain=False) is not None
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"traffic-0.ndjson", "traffic-1.ndjson", "traffic.ndjson.salt"}
    assert journal_of(None, 0, plain=False) is None
