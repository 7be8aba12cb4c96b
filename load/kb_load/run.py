"""A complete load run: start the servers, run Locust against them, write a report.

    python -m kb_load.run                                     a minute against the simulator
    python -m kb_load.run --target engine --shape ramp        against the engine with its real model
    python -m kb_load.run --shape soak --seconds 600          does anything grow?
    python -m kb_load.run --target http://127.0.0.1:3000      against a running server, its base empty
    python -m kb_load.run --page                              with Locust's own page, until Ctrl-C

Exit status: 0 if all budgets were kept, 1 if one was broken or Locust failed, 2 if the command line is wrong
or the base is not empty.
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from kb_load.messages import LoadedBase, refusal
from kb_load.plan import CURVES, BudgetsUnreadable, Plan, broken, broken_by_soak, read_budgets
from kb_load.processes import LOOPBACK, NotReady, Sampler, clean_environment, describe, free_port, running
from kb_load.report import Run, read_figures, read_history, text, write_report

KEY = "a-key-for-the-load"
STATISTICS, PAGE = "locust_stats.csv", "report.html"
_FOLDER = Path(__file__).resolve().parent
_GRACE_SECONDS = 60
_MOST_PROCESSES = 64


@dataclass(frozen=True, slots=True)
class Target:
    """The server under load: its base URL, its key, and the sampled processes by name."""

    url: str
    key: str
    pids: dict[str, int]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the load test; return the exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = _parser().parse_args(given)
    try:
        plan = Plan(options.shape, options.users, options.seconds)
        own = "budgets-engine.toml" if options.target == "engine" else "budgets.toml"
        budgets = read_budgets(options.budgets or _FOLDER / own)
    except (ValueError, BudgetsUnreadable) as error:
        sys.stderr.write(f"load: {error}\n")
        return 2
    options.out = options.out.resolve()
    options.out.mkdir(parents=True, exist_ok=True)
    machine = describe()
    try:
        with tempfile.TemporaryDirectory(prefix="kb-load-") as folder, _target(options, folder) as target:
            if reason := refusal(LoadedBase(target.url, target.key), anyway=options.anyway):
                sys.stderr.write(f"load: {reason}\n")
                return 2
            status, sampler = _run_locust(options, plan, target)
    except NotReady as error:
        sys.stderr.write(f"load: {error}\n")
        return 1
    if not (statistics := options.out / STATISTICS).exists():
        sys.stderr.write(f"load: Locust ended with {status} and left no figures\n")
        return 1
    figures = read_figures(statistics)
    complaints = broken(budgets, figures, plan.mean_users)
    complaints += broken_by_soak(budgets.soak, sampler.samples, figures.seconds)
    run = Run(
        title=f"{plan.shape.capitalize()} load on {options.target}, {plan.peak} users, {plan.seconds} s",
        machine=machine,
        command=shlex.join(["python", "-m", "kb_load.run", *given]),
        figures=figures,
        history=read_history(options.out / "locust_stats_history.csv"),
        samples=sampler.samples,
        budgets=budgets,
        complaints=complaints,
        load_seconds=plan.seconds,
    )
    write_report(run, options.out)
    sys.stdout.write(f"{text(run)}\nreport: {options.out / PAGE}\n")
    sys.stderr.writelines(f"budget broken: {complaint}\n" for complaint in complaints)
    return 1 if complaints or status not in (0, 1) else 0


def _run_locust(options: argparse.Namespace, plan: Plan, target: Target) -> tuple[int, Sampler]:
    for stale in (*options.out.glob("locust*.*"), options.out / PAGE):
        stale.unlink(missing_ok=True)
    prefix = options.out / "locust"
    command = [
        sys.executable, "-m", "locust", "-f", str(_FOLDER / "locustfile.py"), "--host", target.url,
        "--csv", str(prefix), "--csv-full-history",
        "--html", str(options.out / PAGE), "--stop-timeout", "10", "--only-summary",
    ]  # fmt: skip
    command += (
        ["--web-host", LOOPBACK, "--web-port", str(options.page_port)] if options.page else ["--headless"]
    )
    if options.processes > 1:
        # A port for Locust's processes, so that two runs do not interfere.
        port = str(free_port())
        command += ["--processes", str(options.processes)]
        command += ["--master-bind-host", LOOPBACK, "--master-bind-port", port, "--master-port", port]
    environment = clean_environment(
        KB_LOAD_SHAPE=plan.shape,
        KB_LOAD_USERS=str(plan.peak),
        KB_LOAD_SECONDS=str(plan.seconds),
        KB_LOAD_KEY=target.key,
        KB_LOAD_SEED=str(options.seed),
        KB_LOAD_THINK=str(options.think),
        KB_LOAD_ANYWAY="1",  # checked before
    )
    with (options.out / "locust.log").open("wb") as log:
        locust = subprocess.Popen(
            command, env=environment, cwd=options.out, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            start_new_session=True,
        )  # fmt: skip
        try:
            with Sampler({**target.pids, "locust": locust.pid}) as sampler:
                try:
                    status = locust.wait(None if options.page else plan.seconds + _GRACE_SECONDS)
                except (subprocess.TimeoutExpired, KeyboardInterrupt):
                    locust.send_signal(signal.SIGINT)  # on SIGTERM Locust exits without output
                    try:
                        status = locust.wait(_GRACE_SECONDS)
                    except subprocess.TimeoutExpired:
                        status = -signal.SIGKILL
        finally:
            # Locust's worker processes survive if it is killed.
            with suppress(ProcessLookupError):
                os.killpg(locust.pid, signal.SIGKILL)
            locust.wait()
    return status, sampler


@contextmanager
def _target(options: argparse.Namespace, folder: str) -> Iterator[Target]:
    if "://" in options.target:
        yield Target(options.target.rstrip("/"), os.environ.get("KB_MCP_API_KEY", ""), {})
        return
    home = Path(folder)
    port, engine_port = free_port(), free_port()
    with ExitStack() as stack:
        engine = ["-m", "kb_simulator", "--seed", str(options.seed), "--port", str(engine_port)]
        if options.target == "engine":
            engine = ["-m", "kb_cli.main", "engine", "--port", str(engine_port)]
        behind = stack.enter_context(
            running(options.target, engine, home, port=engine_port, KB_HOME=folder, LOG_LEVEL="warn")
        )
        settings = {
            "KB_ENGINE_URL": f"http://{LOOPBACK}:{engine_port}",
            "KB_HOME": folder,
            "KB_MCP_API_KEY": KEY,
        }
        serve = ["-m", "kb_cli.main", "serve", "--port", str(port), *shlex.split(options.serve_flags)]
        server = stack.enter_context(running("server", serve, home, port=port, **settings))
        yield Target(f"http://{LOOPBACK}:{port}", KEY, {"server": server.pid, options.target: behind.pid})


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m kb_load.run",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--target", default="simulator", type=_target_name, help="simulator (default), engine, or a URL")
    add("--shape", default="steady", choices=CURVES, help="shape of the load (default %(default)s)")
    add("--users", type=int, default=20, metavar="N", help="maximum number of agents (default %(default)s)")
    add("--seconds", type=int, default=45, metavar="N", help="duration, in seconds (default %(default)s)")
    think = "pause between an agent's calls, in seconds (default %(default)s)"
    add("--think", type=float, default=0.2, metavar="S", help=think)
    counts, processes = range(1, _MOST_PROCESSES + 1), "processes of the load generator (default %(default)s)"
    add("--processes", type=int, choices=counts, default=1, metavar="N", help=processes)
    add("--seed", type=int, default=7, metavar="N", help="seed of the generated texts (default %(default)s)")
    budgets = "budgets (default: this package's budgets of the target)"
    add("--budgets", type=Path, metavar="FILE", help=budgets)
    flags = "further flags for kb serve, such as '--workers 2'"
    add("--serve-flags", default="", metavar="TEXT", help=flags)
    add("--anyway", action="store_true", help="load a base that is not empty")
    add("--page", action="store_true", help="serve Locust's web page")
    page_port = "port of Locust's web page (default %(default)s)"
    add("--page-port", type=int, default=8089, metavar="PORT", help=page_port)
    out = "folder for results (default %(default)s)"
    add("--out", type=Path, default=Path("out/load"), metavar="DIR", help=out)
    return parser


def _target_name(text: str) -> str:
    if text in ("simulator", "engine") or text.startswith(("http://", "https://")):
        return text
    raise argparse.ArgumentTypeError(f"takes simulator, engine or a URL, not {text!r}")


if __name__ == "__main__":
    # Stop the processes and report, even if the shell set SIGINT to be ignored.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    sys.exit(main())
