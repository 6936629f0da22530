"""`headrace mock-engine` as a process."""

import json
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Sequence

from tests.patience import GUARD

_MAIN = "import sys; from headrace.cli import main; main(['mock-engine', *sys.argv[1:]])"


def _start(arguments: Sequence[str]) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", _MAIN, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_it_says_where_it_listens_and_stops_on_ctrl_c() -> None:
    """One line when it listens, an answer at that address, and exit code 0 without a word after SIGINT."""
    with _start(["--port", "0", "--model", "tiny", "--slots", "1"]) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        url = next(word for word in line.split() if word.startswith("http://")).rstrip(";")
        with urllib.request.urlopen(f"{url}/v1/models", timeout=GUARD) as response:
            served = json.load(response)["data"][0]["id"]
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=GUARD)

    assert served == "tiny"
    assert "serves the model tiny at" in line
    assert (process.returncode, rest, errors) == (0, "", "")


def test_a_port_in_use_is_one_sentence() -> None:
    """What the person can mend comes as a sentence on stderr with exit code 2, not as a traceback."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with _start(["--port", str(port)]) as process:
            _, errors = process.communicate(timeout=GUARD)

    assert process.returncode == 2
    assert errors.startswith(f"headrace: Cannot listen on 127.0.0.1:{port}:")
    assert errors.count("\n") == 1


def test_numbers_that_make_no_sense_are_one_sentence() -> None:
    """A server with no slots cannot be asked for."""
    with _start(["--port", "0", "--slots", "0"]) as process:
        _, errors = process.communicate(timeout=GUARD)

    assert (process.returncode, errors.count("\n")) == (2, 1)
