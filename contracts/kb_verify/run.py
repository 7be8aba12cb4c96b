"""Runs the suite in a process of its own, with the pytest that is installed beside this package.

The caller's project has no influence on it: no configuration, no plugins, no folder.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from kb_verify.results import Results

_NEEDED = ("pytest", "schemathesis")
_PLUGIN = "kb_verify.plugin"
SUITE = "kb_verify.suite"
"""The package of the tests; each of its modules can be run alone."""

TIMEOUT = 90.0
"""Time-out of a response, in seconds; an engine may take 30 of them to wait for a job."""

_RESULTS = "results.json"
_TAIL = 2_000
_LEAVE_SECONDS, _END_SECONDS = 2.0, 30.0


KEY_VARIABLE = "KB_VERIFY_API_KEY"
"""The variable with the engine's key: the environment is not visible in process lists."""


@dataclass(frozen=True, slots=True)
class Target:
    """An engine at `url`, or several engines of one base at URLs separated by commas.

    Of several, the last one answers generated requests. `examples` and `seconds` bound these; all derive from
    `seed`.

    An operation without a response in `timeout` seconds is not requested again. `headers` are part of every
    request, beside the key: a simulator selects its namespace by one.
    """

    url: str
    api_key: str = field(default="", repr=False)
    headers: Mapping[str, str] = field(default_factory=dict)
    seed: int = 7
    examples: int = 15
    seconds: float = 60.0
    timeout: float = TIMEOUT

    @property
    def urls(self) -> list[str]:
        return [url.strip() for url in self.url.split(",")]

    @property
    def all_headers(self) -> dict[str, str]:
        """The headers, including the key."""
        key = {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        return {**self.headers, **key}


class SuiteError(Exception):
    """The suite did not finish; the message is the end of its output."""


def run(
    target: Target,
    *,
    quick: bool = False,
    tests: Sequence[str] = (SUITE,),
    only: Sequence[str] = (),
    junit: Path | None = None,
    show_progress: bool = False,
) -> Results:
    """Verify an engine; its base is empty afterwards. If interrupted (SIGINT), return the results so far.

    `quick` omits the generated requests. `tests` are modules of the suite, `only` further arguments for
    pytest (`-k …`, `-x`). `junit` is the path of a JUnit report to write. `show_progress` lets pytest write
    its progress to stderr.

    Raises:
        ModuleNotFoundError: the extra `verify` is not installed.
        SuiteError: the suite did not finish.
        KeyboardInterrupt: it was interrupted before there were results.
    """
    for name in _NEEDED:
        if find_spec(name) is None:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    with TemporaryDirectory(prefix="kb-verify-") as folder:
        home = Path(folder)
        command = [sys.executable, "-m", "pytest"]
        command += arguments(target, home, quick=quick, tests=tests, only=only, junit=junit)
        environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        environ |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", KEY_VARIABLE: target.api_key}
        out = sys.stderr if show_progress else subprocess.PIPE
        with subprocess.Popen(  # noqa: S603 - our own interpreter and arguments
            command, cwd=home, env=environ, stdout=out, stderr=subprocess.STDOUT, text=True
        ) as process:
            interrupted, output = False, ""
            try:
                output, _ = process.communicate()
            except KeyboardInterrupt:
                interrupted = True
                _interrupt(process)
            finally:
                process.kill()
        try:
            results = results_in(home)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
            if interrupted:
                raise KeyboardInterrupt from error
            raise SuiteError(
                f"the suite did not run to its end: {(output or '')[-_TAIL:].strip()}"
            ) from error
        return msgspec.structs.replace(results, interrupted=interrupted)


def arguments(
    target: Target,
    home: Path,
    *,
    quick: bool = False,
    tests: Sequence[str] = (SUITE,),
    only: Sequence[str] = (),
    junit: Path | None = None,
) -> list[str]:
    """Return pytest's arguments to run the suite in the folder `home`, where it writes results; see `run`."""
    configuration = home / "pytest.ini"
    configuration.write_text("[pytest]\n")
    given = ["-c", str(configuration), "--rootdir", str(home)]
    given += ["-p", "no:cacheprovider", "-p", _PLUGIN, "-q", "--tb=short"]
    # Differences in full: pytest's advice to raise its verbosity does not help a report's reader.
    given += ["-o", "verbosity_assertions=2"]
    given += ["--kb-url", target.url, "--kb-seed", str(target.seed)]
    given += ["--kb-examples", str(target.examples), "--kb-seconds", str(target.seconds)]
    given += ["--kb-timeout", str(target.timeout), "--kb-results", str(home / _RESULTS)]
    for name, value in target.headers.items():
        given += ["--kb-header", f"{name}:{value}"]
    given += ["--pyargs", *tests, *only]
    given += ["-m", "not generated"] if quick else []
    if junit is not None:
        given += [f"--junitxml={junit.absolute()}", "-o", "junit_family=xunit2"]
    return given


def results_in(home: Path) -> Results:
    """Return the results that pytest has written to `home`. Raises OSError, msgspec.DecodeError."""
    return msgspec.json.decode((home / _RESULTS).read_bytes(), type=Results)


def _interrupt(process: subprocess.Popen[str]) -> None:
    """Let the suite write its results and end. A terminal has interrupted it already; if not, send SIGINT."""
    for seconds in (_LEAVE_SECONDS, _END_SECONDS):
        try:
            process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
        else:
            return
