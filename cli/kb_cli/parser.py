"""The command line as people type it. Nothing heavier than argparse is imported to read it."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

from kb_cli import VERSION
from kb_cli.exits import TABLE
from kb_load.bench import BENCHMARKS

# As the contract has them, whose models are not imported to read a command line.
DOC_TYPES = ("note", "text", "markdown", "html", "pdf", "docx", "pptx", "xlsx", "image")
JOB_STATES = ("queued", "running", "completed", "failed", "cancelled")
MODES = ("hybrid", "fts", "vector")
_LEVELS = ("debug", "info", "warn", "error")
_JOB_POLICIES = "how jobs end: at-once (default), polls:N, seconds:S, stuck[:STEP] or fail[:STEP]"

_COLLECTION = "collection; the tag collection:NAME in --tags says the same"
_TAGS = "tags, comma-separated; may be given again"

_EXAMPLES = """\
examples:
  kb up                                       engine and MCP server, ready for an agent
  kb add reports/ --collection documents      take in a folder
  kb search "pension revaluation" --top 5     find passages
  kb addnote "User prefers short answers" --tags collection:memory
  kb updatenote 42 "User prefers bullet points"
  kb stdio --toolset textfile --file notes.txt

settings come from flags, then the environment, then the file of --config, KB_CONFIG or ./kb.toml;
`kb config` shows them all.

"""


@dataclass(frozen=True, slots=True)
class _Groups:
    """Options that several commands share."""

    settings: argparse.ArgumentParser
    engine: argparse.ArgumentParser
    output: argparse.ArgumentParser
    labels: argparse.ArgumentParser


def build_parser() -> argparse.ArgumentParser:
    """The parser of `kb`. What it returns has `run`, `module:function` of the command."""
    parser = argparse.ArgumentParser(
        prog="kb",
        description="A knowledge base that AI agents use over MCP.",
        epilog=_EXAMPLES + TABLE,
        formatter_class=_formatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"kb {VERSION}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", dest="command", required=True)
    groups = _groups()
    _add_servers(commands, groups)
    _add_readers(commands, groups)
    _add_writers(commands, groups)
    _add_bench(commands)
    return parser


def _formatter(prog: str) -> argparse.HelpFormatter:
    return argparse.RawDescriptionHelpFormatter(prog, max_help_position=30)


def _groups() -> _Groups:
    settings = argparse.ArgumentParser(add_help=False)
    settings.add_argument("--config", metavar="FILE", help="file of settings (default: KB_CONFIG, ./kb.toml)")
    engine = argparse.ArgumentParser(add_help=False, parents=[settings])
    engine.add_argument("--url", help="the engine (default: KB_ENGINE_URL)")
    engine.add_argument(
        "--api-key", metavar="KEY", help="its key (default: KB_API_KEY, which no process list shows)"
    )
    output = argparse.ArgumentParser(add_help=False)
    output.add_argument("--json", action="store_true", help="answer with one JSON document")
    labels = argparse.ArgumentParser(add_help=False)
    labels.add_argument("--collection", metavar="NAME", help=_COLLECTION)
    labels.add_argument("--tags", action="append", metavar="TAG,...", help=_TAGS)
    return _Groups(settings, engine, output, labels)


def _command(
    commands: Any, name: str, run: str, summary: str, *parents: argparse.ArgumentParser
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=summary,
        description=summary[0].upper() + summary[1:] + ".",
        epilog=TABLE,
        parents=list(parents),
        formatter_class=_formatter,
        allow_abbrev=False,
    )
    parser.set_defaults(run=run)
    return parser


# --- what serves ----------------------------------------------------------------------------------


def _add_servers(commands: Any, groups: _Groups) -> None:
    up = _command(commands, "up", "kb_cli.up:run", "engine and MCP server together", groups.settings)
    up.add_argument("--home", metavar="DIR", help="data folder")
    up.add_argument("--port", help="port of the MCP server")
    up.add_argument("--engine-port", help="port of the engine")
    up.add_argument("--toolsets", metavar="NAME,...", help="what /mcp shows")
    _add_level(up)

    serve = _command(commands, "serve", "kb_cli.run:serve", "the MCP server over HTTP", groups.settings)
    serve.add_argument("--host", help="address to listen on")
    serve.add_argument("--port", help="port to listen on")
    serve.add_argument("--home", metavar="DIR", help="data folder")
    serve.add_argument("--engine-url", metavar="URL", help="the engine")
    serve.add_argument("--ragler-url", metavar="URL", help="RAGler's backend")
    serve.add_argument("--toolsets", metavar="NAME,...", help="what /mcp shows")
    serve.add_argument("--workers", metavar="N", help="processes that share the port (default 1)")
    _add_level(serve)
    _add_supervision(serve)

    stdio = _command(
        commands, "stdio", "kb_cli.run:stdio", "an MCP server on stdin and stdout", groups.settings
    )
    stdio.add_argument("--toolset", metavar="NAME", help="what it shows (default: KB_TOOLSETS)")
    stdio.add_argument("--file", metavar="PATH", help="the text of the toolset textfile")
    stdio.add_argument("--description", metavar="TEXT", help="what that text is about")
    stdio.add_argument("--engine-url", metavar="URL", help="the engine")
    stdio.add_argument("--ragler-url", metavar="URL", help="RAGler's backend")
    _add_level(stdio)

    engine = _command(commands, "engine", "kb_cli.run:engine", "the engine over HTTP", groups.settings)
    engine.add_argument("--host", help="address to listen on")
    engine.add_argument("--port", help="port to listen on; 0: any free one")
    engine.add_argument("--home", metavar="DIR", help="data folder")
    engine.add_argument("--embedder", metavar="NAME", help="the embedding model")
    _add_level(engine)
    _add_supervision(engine)

    reindex = _command(
        commands,
        "reindex",
        "kb_cli.reindex:run",
        "embed a base anew with another model, while no engine uses it",
        groups.settings,
        groups.output,
    )
    reindex.add_argument("--home", metavar="DIR", help="data folder")
    reindex.add_argument("--embedder", metavar="NAME", help="the embedding model")

    sim = _command(
        commands, "sim", "kb_cli.simulator:run", "a fake engine that fails on command", groups.settings
    )
    sim.add_argument("--seed", help="what every random decision derives from (7)")
    sim.add_argument("--host", help="address to listen on")
    sim.add_argument("--port", help="port to listen on; 0: any free one (8900)")
    sim.add_argument("--control", metavar="PORT", help="port of the control plane, on loopback (off)")
    sim.add_argument("--clock", choices=("autojump", "manual", "real"), help="how time passes (autojump)")
    sim.add_argument("--jobs", metavar="POLICY", help=_JOB_POLICIES)


def _add_level(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--log-level", type=str.lower, choices=_LEVELS, help="how much is logged")


def _add_supervision(parser: argparse.ArgumentParser) -> None:
    # For `kb up` alone: the descriptor on which to say that it is ready.
    parser.add_argument("--supervised", type=int, metavar="FD", help=argparse.SUPPRESS)


# --- what reads -----------------------------------------------------------------------------------


def _add_readers(commands: Any, groups: _Groups) -> None:
    search = _command(
        commands, "search", "kb_cli.commands.search:run", "find passages",
        groups.engine, groups.output, groups.labels,
    )  # fmt: skip
    search.add_argument("query", help="words or a question")
    search.add_argument("--top", type=_top, default=10, metavar="N", help="how many at the most (default 10)")
    search.add_argument("--mode", choices=MODES, help="by words, by meaning, or both (default)")
    search.add_argument("--fts-only", action="store_true", help="by words only")
    search.add_argument("--doc-type", choices=DOC_TYPES, help="only documents of this type")
    search.add_argument(
        "--min-score", type=_score, default=0.0, metavar="S", help="only scores from S, 0 to 1"
    )
    search.add_argument("--explain", action="store_true", help="say how each score came about")
    search.add_argument("--full", action="store_true", help="show passages whole")

    get = _command(
        commands,
        "get",
        "kb_cli.commands.documents:get",
        "show a document, or list them",
        groups.engine,
        groups.output,
        groups.labels,
    )
    get.add_argument("document", nargs="?", metavar="ID", help="its number or uid (default: list all)")
    get.add_argument("--source-path", metavar="PATH", help="list only the documents from this source")
    get.add_argument("--no-text", action="store_true", help="without its text")
    get.add_argument("--offset", type=_count, default=0, metavar="N", help="chunks, or documents, to skip")
    get.add_argument(
        "--limit", type=_limit, metavar="N", help="most chunks (default 200), or documents (default 1000)"
    )

    collections = _command(
        commands, "collections", "kb_cli.commands.collections:run", "list, show or describe collections",
        groups.engine, groups.output,
    )  # fmt: skip
    collections.add_argument(
        "collection", nargs="?", metavar="NAME", help="its name or id (default: list all)"
    )
    collections.add_argument("--describe", metavar="TEXT", help="say what it is for")
    collections.add_argument("--created-by", metavar="EMAIL", help="say who made it")
    collections.add_argument(
        "--audience", action="append", metavar="WHO", help="say whom it is for; may be given again"
    )
    collections.add_argument(
        "--scenario", action="append", metavar="WHEN", help="say what it is used for; may be given again"
    )

    _command(
        commands, "status", "kb_cli.commands.state:status", "how the engine is", groups.engine, groups.output
    )
    jobs = _command(
        commands, "jobs", "kb_cli.commands.state:jobs", "what the engine is at", groups.engine, groups.output
    )
    jobs.add_argument("job", nargs="?", metavar="ID", help="one job (default: the recent ones)")
    jobs.add_argument("--retry", action="store_true", help="queue this job, which has failed, again")
    jobs.add_argument("--status", choices=JOB_STATES, help="only jobs in this state")
    jobs.add_argument(
        "--limit", type=_limit, default=50, metavar="N", help="how many at the most (default 50)"
    )

    _command(commands, "config", "kb_cli.config:show", "every setting", groups.settings, groups.output)

    verify = _command(
        commands, "verify", "kb_cli.commands.verify:run", "whether an engine keeps its promises",
        groups.engine, groups.output,
    )  # fmt: skip
    verify.add_argument("target", nargs="?", metavar="URL", help="the engine (default: KB_ENGINE_URL)")
    verify.add_argument("--report", metavar="DIR", help="write junit.xml and verification.html there")
    verify.add_argument("--erase", action="store_true", help="allow a base that is not empty; all is removed")
    verify.add_argument("--quick", action="store_true", help="without the generated requests")
    verify.add_argument(
        "--seed", type=int, default=7, metavar="N", help="what generated requests derive from (default 7)"
    )
    verify.add_argument(
        "--examples", type=_limit, default=15, metavar="N", help="of those, for an operation (default 15)"
    )
    verify.add_argument(
        "--seconds", type=float, default=60.0, metavar="S", help="bound on each of their four phases (60)"
    )


# --- what writes ----------------------------------------------------------------------------------


def _add_writers(commands: Any, groups: _Groups) -> None:
    addnote = _command(
        commands, "addnote", "kb_cli.commands.notes:add", "remember a text",
        groups.engine, groups.output, groups.labels,
    )  # fmt: skip
    addnote.add_argument("text", help="the text; -: read it from stdin")
    addnote.add_argument("--title", help="its title (default: its beginning)")
    addnote.add_argument("--source-path", metavar="PATH", help="where it came from")
    addnote.add_argument("--no-wait", action="store_true", help="do not wait until it can be found")

    update = _command(
        commands, "updatenote", "kb_cli.commands.notes:update", "replace a note's text in place",
        groups.engine, groups.output,
    )  # fmt: skip
    update.add_argument("document_id", type=_document_number, metavar="ID", help="the note's number")
    update.add_argument("text", help="the new text; -: read it from stdin")
    update.add_argument("--title", help="a new title")
    update.add_argument(
        "--expected-version", type=_document_number, metavar="N", help="only if it is at version N"
    )
    update.add_argument("--no-wait", action="store_true", help="do not wait until it can be found")

    add = _command(
        commands, "add", "kb_cli.commands.add:run", "take in files and folders",
        groups.engine, groups.output, groups.labels,
    )  # fmt: skip
    add.add_argument("paths", nargs="+", metavar="PATH", help="a file, or a folder with all below it")
    add.add_argument("--no-wait", action="store_true", help="do not wait until they can be found")
    add.add_argument(
        "--force-ocr", action="store_true", help="read PDF by OCR even where it holds text; others as always"
    )

    remove = _command(
        commands, "rm", "kb_cli.commands.documents:remove", "remove documents", groups.engine, groups.output
    )
    remove.add_argument("documents", nargs="+", metavar="ID", help="number or uid")
    remove.add_argument("--yes", action="store_true", help="do not ask")

    move = _command(
        commands, "move", "kb_cli.commands.documents:move", "put a document into another collection",
        groups.engine, groups.output,
    )  # fmt: skip
    move.add_argument("document", metavar="ID", help="number or uid")
    move.add_argument("to", metavar="COLLECTION", help="its new collection")


# --- what measures --------------------------------------------------------------------------------


def _add_bench(commands: Any) -> None:
    bench = _command(commands, "bench", "kb_cli.commands.bench:run", "measure, side by side")
    bench.epilog = "\n".join(f"  {name:12} {summary}" for name, summary in BENCHMARKS.items())
    bench.epilog = f"benchmarks (kb bench NAME --help shows their options):\n{bench.epilog}\n\n{TABLE}"
    bench.add_argument("benchmark", choices=BENCHMARKS, metavar="NAME", help="the benchmark")
    bench.add_argument("arguments", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)


def _bounded(text: str, low: int, high: int) -> int:
    try:
        number = int(text)
    except ValueError:
        number = low - 1
    if not low <= number <= high:
        raise argparse.ArgumentTypeError(f"takes a number from {low} to {high}, not {text!r}")
    return number


def _count(text: str) -> int:
    return _bounded(text, 0, 2**63 - 1)


def _limit(text: str) -> int:
    return _bounded(text, 1, 1_000)


def _top(text: str) -> int:
    return _bounded(text, 1, 100)


def _score(text: str) -> float:
    try:
        score = float(text)
    except ValueError:
        score = -1.0
    if not 0.0 <= score <= 1.0:
        raise argparse.ArgumentTypeError(f"takes a number from 0 to 1, not {text!r}")
    return score


def _document_number(text: str) -> int:
    return _bounded(text, 1, 2**63 - 1)
