"""The command line of `kb`: a table of commands, which imports nothing larger than the contract.

`dispatch` calls a command's function with its arguments, and converts its failure to one line and an exit
status.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from itertools import takewhile
from typing import Any, NamedTuple, get_args

from kb_cli import VERSION
from kb_cli.connect.clients import CLIENTS
from kb_cli.imported.kinds import KINDS
from kb_cli.output import EXIT_STATUSES, CliError, Exit, Output, did_you_mean, printable_line
from kb_config.installing import install_command
from kb_config.settings import SettingsError
from kb_contracts.api import models as m

_EXAMPLES = """\
examples:
  kb up                                       engine and MCP server, ready for an agent
  kb add reports/ --collection documents      take in a folder
  kb search "pension revaluation" --top 5     find passages
  kb sync notes/ --collection notes           keep a folder and a collection in step
  kb addnote "User prefers short answers" --tags collection:memory
  kb updatenote 42 "User prefers bullet points"
  kb stdio --toolset textfile --file notes.txt

settings come from flags, then the environment, then the file of --config, KB_CONFIG or ./kb.toml;
`kb config` shows them all.

"""


class Argument(NamedTuple):
    """Arguments of `add_argument`."""

    names: tuple[str, ...]
    options: dict[str, Any]


class Command(NamedTuple):
    """A command: `run` is `module:function`, `extras` are the parts of kb that must be installed for it."""

    name: str
    run: str
    summary: str
    arguments: tuple[Argument, ...]
    extras: tuple[str, ...] = ()


def _arg(*names: str, **options: Any) -> Argument:
    return Argument(names, options)


def _number(kind: Callable[[str], float], low: float, high: float) -> Callable[[str], float]:
    def bounded(text: str) -> float:
        try:
            number = kind(text)
        except ValueError:
            number = low - 1
        if not low <= number <= high:
            raise argparse.ArgumentTypeError(f"takes a number from {low} to {high}, not {text!r}")
        return number

    return bounded


_COUNT = _number(int, 0, 2**63 - 1)
_POSITIVE = _number(int, 1, 2**63 - 1)
_LIMIT = _number(int, 1, 1_000)

# An option has the name of the setting that it overrides; for a different option name, `dest` has it.
_SETTINGS = (
    _arg("--config", metavar="FILE", help="file of settings (default: KB_CONFIG, ./kb.toml)"),
)  # fmt: skip
_JSON = _arg("--json", action="store_true", help="answer with one JSON document")
_API_KEY = _arg("--api-key", metavar="KEY", help="its key (default: KB_API_KEY, which no process list shows)")
_ENGINE_URL = _arg("--url", dest="engine_url", metavar="URL", help="the engine (default: KB_ENGINE_URL)")
_ENGINE = (
    *_SETTINGS,
    _ENGINE_URL,
    _API_KEY,
    _JSON,
)
_LABELS = (
    _arg("--collection", metavar="NAME", help="collection; the tag collection:NAME in --tags says the same"),
    _arg("--tags", action="append", metavar="TAG,...", help="tags, comma-separated; may be given again"),
)
_SYNC = (
    _arg("folder", metavar="FOLDER", help="the folder; what .gitignore and .kbignore name is left out"),
    _arg("--yes", action="store_true", help="remove all, where the folder has no file any more"),
)
_HOME = _arg("--home", metavar="DIR", help="data folder")
_HOST = _arg("--host", help="address to listen on")
_EMBEDDER = _arg("--embedder", metavar="NAME", help="the embedding model")
_TOOLSETS = _arg("--toolsets", metavar="NAME,...", help="what /mcp shows")
_BACKENDS = (
    _arg("--engine-url", metavar="URL", help="the engine"),
    _arg("--ragler-url", dest="ragler_api_url", metavar="URL", help="RAGler's backend"),
)
_LEVEL = _arg(
    "--log-level", type=str.lower, choices=("debug", "info", "warn", "error"), help="how much is logged"
)
# Only for `kb up`: the descriptor for the report that the process is ready.
_SUPERVISED = _arg("--supervised", type=int, metavar="FD", help=argparse.SUPPRESS)
_NO_WAIT = _arg("--no-wait", action="store_true", help="do not wait until it can be found")

COMMANDS = (
    Command("up", "kb_cli.up:run", "engine and MCP server together", (
        *_SETTINGS,
        _HOME,
        _arg("--port", help="port of the MCP server"),
        _arg("--engine-port", help="port of the engine"),
        _arg("--single", action="store_true", help="both in one process, for a small machine or container"),
        _TOOLSETS,
        _LEVEL,
    ), ("server", "engine")),
    Command("serve", "kb_cli.run:serve", "the MCP server over HTTP", (
        *_SETTINGS,
        _HOST,
        _arg("--port", help="port to listen on"),
        _HOME,
        *_BACKENDS,
        _TOOLSETS,
        _arg("--workers", metavar="N", help="processes that share the port (default 1)"),
        _LEVEL,
        _SUPERVISED,
    ), ("server",)),
    Command("stdio", "kb_cli.run:stdio", "an MCP server on stdin and stdout", (
        *_SETTINGS,
        _arg("--toolset", dest="toolsets", metavar="NAME", help="what it shows (default: KB_TOOLSETS)"),
        _arg("--file", dest="text_file", metavar="PATH", help="the text of the toolset textfile"),
        _arg("--description", dest="text_description", metavar="TEXT", help="what that text is about"),
        *_BACKENDS,
        _LEVEL,
    ), ("server",)),
    Command("engine", "kb_cli.run:engine", "the engine over HTTP", (
        *_SETTINGS,
        _HOST,
        _arg("--port", help="port to listen on; 0: any free one"),
        _HOME,
        _EMBEDDER,
        _arg("--linger", type=_number(float, 0, 1e9), metavar="SECONDS",
             help="end so long after the last `kb stdio` of this data folder (default: never)"),
        _LEVEL,
        _SUPERVISED,
    ), ("engine",)),
    Command(
        "reindex",
        "kb_cli.run:reindex",
        "embed a base again with another model, while no engine uses it",
        (*_SETTINGS, _JSON, _HOME, _EMBEDDER),
        ("engine",),
    ),
    Command("backup", "kb_cli.backup:backup", "copy a base, also while an engine uses it", (
        *_SETTINGS, _JSON, _HOME,
        _arg("copy", metavar="FOLDER", help="a new folder"),
        _arg("--damaged", action="store_true", help="copy what is whole of a damaged base"),
    ), ("engine",)),
    Command("restore", "kb_cli.backup:restore", "make a base from such a copy", (
        *_SETTINGS, _JSON, _HOME,
        _arg("copy", metavar="FOLDER", help="what kb backup has made"),
    ), ("engine",)),
    Command("migrate", "kb_cli.migrate:run", "put a base into another one, while no engine uses either", (
        *_SETTINGS, _JSON, _HOME,
        _arg("source", metavar="SOURCE", help="sqlite:PATH or postgresql://USER:PASSWORD@HOST/DATABASE"),
        _arg("target", metavar="TARGET", help="the same of a base that is unused, or is made"),
    ), ("engine",)),
    Command("check", "kb_cli.check:run", "compare a base with itself, while no engine uses it", (
        *_SETTINGS, _JSON, _HOME, _EMBEDDER,
        _arg("--deep", action="store_true", help="embed every passage again, and compare"),
        _arg("--repair", action="store_true", help="make again what is derived and wrong"),
    ), ("engine",)),
    Command("export", "kb_cli.exported.command:export", "write a base as texts that a person can read", (
        *_ENGINE,
        *_LABELS,
        _arg("folder", metavar="FOLDER", help="a new folder"),
    )),
    Command("import", "kb_cli.imported.command:run", "take in what kb export or others have written", (
        *_ENGINE,
        *_LABELS,
        _arg("place", metavar="PATH",
             help="what kb export has made, for a base that no engine uses; or for an engine: a vault of "
             "Obsidian, a folder of basic-memory, an export (JSON) of mcp-memory-service"),
        _arg("--from", dest="kind", choices=KINDS, help="what it is (default: by what is in it)"),
        _arg("--dry-run", action="store_true", help="say what would be sent, and send nothing"),
        _HOME, _EMBEDDER,
    ), ("server", "engine")),
    Command("sim", "kb_cli.run:simulator", "a fake engine that fails on command", (
        *_SETTINGS,
        _arg("--seed", help="what every random decision derives from (7)"),
        _HOST,
        _arg("--port", help="port to listen on; 0: any free one (8900)"),
        _arg("--control", metavar="PORT", help="port of the control plane, on loopback (off)"),
        _arg("--clock", choices=("autojump", "manual", "real"), help="how time passes (autojump)"),
        _arg("--jobs", metavar="POLICY",
             help="how jobs end: at-once (default), polls:N, seconds:S, stuck[:STEP] or fail[:STEP]"),
    )),
    Command("search", "kb_cli.documents:search", "find passages", (
        *_ENGINE,
        *_LABELS,
        _arg("query", help='words or a question; "a phrase" and -word in it, in single quotes'),
        _arg("--top", type=_number(int, 1, 100), default=10, metavar="N",
             help="how many at the most (default 10)"),
        _arg("--mode", choices=get_args(m.Mode), help="by words, by meaning, or both (default)"),
        _arg("--fts-only", action="store_true", help="by words only"),
        _arg("--doc-type", choices=get_args(m.DocType), help="only documents of this type"),
        _arg("--min-score", type=_number(float, 0, 1), default=0.0, metavar="S",
             help="only scores from S, 0 to 1"),
        _arg("--explain", action="store_true", help="say how each score came about"),
        _arg("--full", action="store_true", help="show passages whole"),
    )),
    Command("get", "kb_cli.documents:get", "show a document, or list them", (
        *_ENGINE,
        *_LABELS,
        _arg("document", nargs="?", metavar="ID", help="its number or uid (default: list all)"),
        _arg("--source-path", metavar="PATH", help="list only the documents from this source"),
        _arg("--no-text", action="store_true", help="without its text"),
        _arg("--original", metavar="FILE", help="save the file that it was made of, where it is kept"),
        _arg("--offset", type=_COUNT, default=0, metavar="N", help="chunks, or documents, to skip"),
        _arg("--limit", type=_LIMIT, metavar="N",
             help="most chunks (default 200), or documents (default 1000)"),
    )),
    Command("collections", "kb_cli.state:collections", "list, show or describe collections", (
        *_ENGINE,
        _arg("collection", nargs="?", metavar="NAME", help="its name or id (default: list all)"),
        _arg("--describe", metavar="TEXT", help="say what it is for"),
        _arg("--created-by", metavar="EMAIL", help="say who made it"),
        _arg("--audience", action="append", metavar="WHO", help="say whom it is for; may be given again"),
        _arg("--scenario", action="append", metavar="WHEN",
             help="say what it is used for; may be given again"),
    )),
    Command("status", "kb_cli.state:status", "how the engine is", _ENGINE),
    Command("jobs", "kb_cli.state:jobs", "what the engine is at", (
        *_ENGINE,
        _arg("job", nargs="?", metavar="ID", help="one job (default: the recent ones)"),
        _arg("--retry", action="store_true", help="queue this job, which has failed, again"),
        _arg("--status", choices=get_args(m.JobStatus), help="only jobs in this state"),
        _arg("--limit", type=_LIMIT, default=50, metavar="N", help="how many at the most (default 50)"),
    )),
    Command("config", "kb_cli.config:show", "every setting", (*_SETTINGS, _JSON)),
    Command("doctor", "kb_cli.doctor:run", "what is wrong here, and what to do about it", (
        *_SETTINGS, _ENGINE_URL, _JSON,
    ), ("server",)),
    Command("connect", "kb_cli.connect.command:run", "tell a client of kb, or which clients there are", (
        *_SETTINGS,
        _JSON,
        _arg("client", nargs="?", choices=CLIENTS, metavar="CLIENT",
             help=f"{', '.join(CLIENTS)} (default: list them)"),
        _arg("--endpoint", metavar="URL", help="where kb is (default: that of the settings, as of kb up)"),
        _arg("--name", default="kb", help="what the client calls it (default kb)"),
        _arg("--toolsets", default="kb", metavar="NAMES",
             help="the toolsets, each with an entry of its own, between commas (default kb)"),
        _arg("--print", action="store_true", help="show what belongs into its file, and change nothing"),
        _arg("--undo", action="store_true", help="take it out again"),
        _arg("--yes", action="store_true", help="do not ask"),
    ), ("server",)),
    Command("verify", "kb_cli.verify:run", "whether an engine keeps its promises", (
        *_ENGINE,
        _arg("target", nargs="?", metavar="URL", help="the engine (default: KB_ENGINE_URL)"),
        _arg("--report", metavar="DIR", help="write junit.xml and verification.html there"),
        _arg("--erase", action="store_true", help="allow a base that is not empty; all is removed"),
        _arg("--quick", action="store_true", help="without the generated requests"),
        _arg("--seed", type=int, default=7, metavar="N",
             help="what generated requests derive from (default 7)"),
        _arg("--examples", type=_LIMIT, default=15, metavar="N",
             help="of those, for an operation (default 15)"),
        _arg("--seconds", type=float, default=60.0, metavar="S",
             help="bound on each of their four phases (60)"),
        _arg("--timeout", type=_number(float, 1, 3_600), default=90.0, metavar="S",
             help="wait for a response; the engine may take 30 of them to wait for a job (90)"),
    ), ("verify",)),
    Command("eval", "kb_cli.evaluation.command:run", "how well searches answer, where answers are known", (
        *_SETTINGS,
        _arg("--engine", dest="engine_url", metavar="URL",
             help="the engine that is asked a file of questions (default: KB_ENGINE_URL)"),
        _API_KEY,
        _JSON,
        _EMBEDDER,
        _arg("dataset", nargs="?", metavar="DATASET",
             help="a folder in BEIR's layout, taken in on a base of its own; or a file of questions and "
             "documents, for an engine that runs"),
        _arg("--queries", choices=("all", "odd", "even"), default="all",
             help="only those at odd or even places, counted from 1"),
        _arg("--unanswerable", metavar="FILE", help="questions that nothing answers, to measure weak"),
        _arg("--output", metavar="FILE", help="write a line for each question, to compare runs"),
        _arg("--plot", metavar="FILE", help="draw the figures as PNG"),
        _arg("--compare", nargs=2, metavar=("RUN1", "RUN2"), help="which questions got better and worse"),
        _arg("--seed", type=_COUNT, default=7, metavar="N", help="what intervals are drawn by (default 7)"),
    ), ("engine",)),
    Command("addnote", "kb_cli.documents:add_note", "remember a text", (
        *_ENGINE,
        *_LABELS,
        _arg("text", help="the text; -: read it from stdin"),
        _arg("--title", help="its title (default: its beginning)"),
        _arg("--source-path", metavar="PATH", help="where it came from"),
        _NO_WAIT,
    )),
    Command("updatenote", "kb_cli.documents:update_note", "replace a note's text in place", (
        *_ENGINE,
        _arg("document_id", type=_POSITIVE, metavar="ID", help="the note's number"),
        _arg("text", help="the new text; -: read it from stdin"),
        _arg("--title", help="a new title"),
        _arg("--expected-version", type=_POSITIVE, metavar="N", help="only if it is at version N"),
        _NO_WAIT,
    )),
    Command("add", "kb_cli.add:run", "take in files, folders and pages of the web", (
        *_ENGINE,
        *_LABELS,
        _arg("paths", nargs="+", metavar="PATH", help="a file, a folder with all below it, or a URL"),
        _arg("--no-wait", action="store_true", help="do not wait until they can be found"),
        _arg("--force-ocr", action="store_true",
             help="read PDF by OCR even where it holds text; others as always"),
        _arg("--as-text", action="store_true", help="take files of unknown kinds for text (UTF-8)"),
        _arg("--private", action="store_true", help="fetch URLs from this machine's own network, too"),
    )),
    Command("sync", "kb_cli.sync.command:run", "bring a collection in step with a folder", (
        *_ENGINE,
        *_LABELS,
        *_SYNC,
        _arg("--dry-run", action="store_true", help="say what would be done, and do nothing"),
    ), ("server",)),
    Command("watch", "kb_cli.sync.command:watch", "keep it in step until interrupted", (
        *_ENGINE, *_LABELS, *_SYNC,
    ), ("server",)),
    Command("rm", "kb_cli.documents:remove", "remove documents", (
        *_ENGINE,
        _arg("documents", nargs="+", metavar="ID", help="number or uid"),
        _arg("--purge", action="store_true", help="keep nothing of them, nor of their earlier versions"),
        _arg("--yes", action="store_true", help="do not ask"),
    )),
    Command("history", "kb_cli.history:run", "documents as they were: show them, bring them back", (
        *_ENGINE,
        _arg("document", nargs="?", metavar="ID", help="number or uid (default: list what was removed)"),
        _arg("version", nargs="?", type=_LIMIT, metavar="VERSION", help="show this version with its text"),
        _arg("--diff", action="store_true", help="show how it differs from the note as it is now"),
        _arg("--restore", action="store_true", help="bring this version back (default: the latest)"),
        _arg("--purge", action="store_true", help="keep no version of it any more"),
        _arg("--offset", type=_COUNT, default=0, metavar="N", help="versions to skip"),
        _arg("--limit", type=_LIMIT, default=100, metavar="N", help="most versions (default 100)"),
    )),
    Command("audit", "kb_cli.audit:run", "who did what to which document, where KB_AUDIT has it written", (
        *_SETTINGS,
        _HOME,
        _JSON,
        _arg("--folder", dest="audit_folder", metavar="DIR", help="where it lies (default: KB_AUDIT_FOLDER)"),
        _arg("--who", metavar="NAME", help="only what this key, or the subject of this token, did"),
        _arg("--document", metavar="UID", help="only what concerns this document"),
        _arg("--action", metavar="NAME", help="only this operation or tool"),
        _arg("--outcome", metavar="CODE", help="only this: ok, an error's code, or refused for any"),
        _arg("--correlation-id", metavar="ID", help="only what belongs to this request"),
        _arg("--since", metavar="TIME", help="RFC 3339, in UTC"),
        _arg("--until", metavar="TIME", help="the same"),
        _arg("--limit", type=_COUNT, default=1_000, metavar="N", help="the last so many (default 1000)"),
        _arg("--heads", action="store_true", help="the last line of each chain, as JSON, to keep elsewhere"),
        _arg("--check", action="store_true", help="whether every line is as it was written"),
        _arg("--known", metavar="FILE", help="also against heads that were printed before"),
    )),
    Command("move", "kb_cli.documents:move", "put a document into another collection", (
        *_ENGINE,
        _arg("document", metavar="ID", help="number or uid"),
        _arg("to", metavar="COLLECTION", help="its new collection"),
        _arg("--new", action="store_true", help="make the collection where there is none of this name"),
    ), ("server",)),
    Command("keys", "kb_cli.keys:run", "who may do what: make, list, revoke and rotate keys", (
        *_SETTINGS, _JSON, _HOME,
        _arg("action", choices=("create", "list", "revoke", "rotate"), help="what to do"),
        _arg("key", nargs="?", metavar="KEY", help="its name, or its id"),
        _arg("--rights", default="read", metavar="RIGHT,...",
             help="of a new key: read, write, delete, administer (default read)"),
        _arg("--collection", action="append", metavar="NAME",
             help="of a new key: for these alone, comma-separated; NAME* for all that begin so "
             "(default: everything)"),
        _arg("--toolset", action="append", metavar="NAME",
             help="of a new key: for these alone; pages are one (default: all)"),
        _arg("--expires", metavar="TIME", help="of a new key: after 12h, 90d or 4w (default: never)"),
        _arg("--calls-per-minute", type=_COUNT, metavar="N", help="of a new key: tool calls"),
        _arg("--bytes-per-day", type=_COUNT, metavar="N", help="of a new key: what it may add"),
        _arg("--documents-per-day", type=_COUNT, metavar="N", help="of a new key: how many it may add"),
        _arg("--uploads-in-flight", type=_COUNT, metavar="N", help="of a new key: uploads open at once"),
        _arg("--grace", metavar="TIME", help="with rotate: how long the old token works on (default: not)"),
    )),
)  # fmt: skip


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of `kb`. Its results have `run` and `extras` of their `Command`."""
    return _build_parsers()[0]


def _build_parsers() -> tuple[argparse.ArgumentParser, Mapping[str, argparse.ArgumentParser]]:
    """Return the parser of `kb`, and the parsers of its commands by name."""
    formatter = partial(argparse.RawDescriptionHelpFormatter, max_help_position=30)
    parser = argparse.ArgumentParser(
        prog="kb",
        description="A knowledge base that AI agents use over MCP.",
        epilog=_EXAMPLES + EXIT_STATUSES,
        formatter_class=formatter,
        allow_abbrev=False,
    )
    parser.add_argument("-V", "--version", action="version", version=f"kb {VERSION}")
    parsers = parser.add_subparsers(title="commands", metavar="COMMAND", dest="command", required=True)
    for command in COMMANDS:
        one = parsers.add_parser(
            command.name,
            help=command.summary,
            description=command.summary[0].upper() + command.summary[1:] + ".",
            epilog=EXIT_STATUSES,
            formatter_class=formatter,
            allow_abbrev=False,
        )
        for names, options in command.arguments:
            one.add_argument(*names, **options)
        one.set_defaults(run=command.run, extras=command.extras)
    return parser, parsers.choices


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the parsed `arguments`. An error shows the usage of its own command, and the most similar name.

    Raises:
        SystemExit: as argparse does, with 0 or 2.
    """
    match arguments:
        case ["help", *others]:
            arguments = [*others, "--help"]
        case ["version", *others]:
            arguments = ["--version", *others]
    root, parsers = _build_parsers()
    parser = root
    place = next((place for place, each in enumerate(arguments) if not each.startswith("-")), len(arguments))
    _check_options(parser, arguments[:place], ["--version", "--help"])
    for command in COMMANDS:
        if [command.name] == arguments[place : place + 1]:
            parser = parsers[command.name]
            names = [name for argument in command.arguments for name in argument.names]
            _check_options(parser, arguments[place + 1 :], [*names, "--help"])
    if place < len(arguments) and arguments[place] not in parsers:
        hint = did_you_mean(arguments[place], [*parsers, "help", "version"])
        parser.error(f"there is no command {arguments[place]!r}{hint or '; kb help lists them'}")
    options, others = root.parse_known_args(arguments)
    if others:
        parser.error(f"unrecognized arguments: {' '.join(others)}")
    return options


def _check_options(parser: argparse.ArgumentParser, arguments: Sequence[str], names: Sequence[str]) -> None:
    """Refuse the first long option that is not among `names`."""
    for argument in takewhile(lambda each: each != "--", arguments):
        name = argument.partition("=")[0]
        # argparse takes an argument with a space as text, even if it begins with dashes.
        if name.startswith("--") and " " not in argument and name not in names:
            options = [each for each in names if each.startswith("--")]
            parser.error(f"there is no option {name}{did_you_mean(name, options)}")


def dispatch(arguments: Sequence[str]) -> int:
    """Run the command of `arguments`; return the exit status. Raises SystemExit as argparse, with 0 or 2."""
    options = _parse(arguments)
    # A terminal that cannot show a character gets its escape, so that no output fails for that reason.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        module, _, function = options.run.partition(":")
        status = (
            getattr(import_module(module), function)(options, Output(as_json=getattr(options, "json", False)))
            or Exit.OK
        )
        sys.stdout.flush()
    except CliError as error:
        return _fail(options, error.message, error.status)
    except SettingsError as error:
        return _fail(options, str(error), Exit.USAGE)
    except KeyboardInterrupt:
        return _fail(options, "interrupted", Exit.INTERRUPTED)
    except BrokenPipeError:
        # The reader of our output has closed it; the flush at exit would fail again, with a traceback.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.BROKEN_PIPE
    except ModuleNotFoundError as error:
        package, how = (error.name or "").partition(".")[0], install_command(*options.extras)
        hint = f"; install what `kb {options.command}` needs with: {how}" if options.extras else ""
        return _fail(options, f"the package {package} is not installed{hint}", Exit.FAILED)
    except Exception as error:  # noqa: BLE001 - the boundary: people get a line, and the traceback with LOG_LEVEL=debug
        if os.environ.get("LOG_LEVEL") == "debug":
            traceback.print_exc()
        message = f"a fault of kb itself: {type(error).__name__}: {error} (LOG_LEVEL=debug shows where)"
        return _fail(options, message, Exit.FAILED)
    return status


def _fail(options: argparse.Namespace, message: str, status: Exit) -> Exit:
    sys.stderr.write(f"kb {options.command}: {printable_line(message)}\n")
    return status
