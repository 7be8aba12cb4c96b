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
  kb up                                       start engine and MCP server
  kb add reports/ --collection documents      add a folder
  kb search "pension revaluation" --top 5     find passages
  kb sync notes/ --collection notes           synchronize a collection with a folder
  kb addnote "User prefers short answers" --tags collection:memory
  kb updatenote 42 "User prefers bullet points"
  kb stdio --toolset textfile --file notes.txt

settings: flags override the environment, which overrides the file of --config, KB_CONFIG or ./kb.toml;
`kb config` shows all settings.

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
    _arg("--config", metavar="FILE", help="settings file (default: KB_CONFIG, ./kb.toml)"),
)  # fmt: skip
_JSON = _arg("--json", action="store_true", help="print one JSON document")
_API_KEY = _arg(
    "--api-key", metavar="KEY", help="key of the engine (default: KB_API_KEY, not visible in process lists)"
)
_ENGINE_URL = _arg(
    "--url", dest="engine_url", metavar="URL", help="URL of the engine (default: KB_ENGINE_URL)"
)
_ENGINE = (
    *_SETTINGS,
    _ENGINE_URL,
    _API_KEY,
    _JSON,
)
_LABELS = (
    _arg("--collection", metavar="NAME", help="collection; same as the tag collection:NAME in --tags"),
    _arg("--tags", action="append", metavar="TAG,...", help="tags, comma-separated; repeatable"),
)
_SYNC = (
    _arg("folder", metavar="FOLDER", help="folder; files matched by .gitignore and .kbignore are ignored"),
    _arg("--yes", action="store_true", help="remove all documents if the folder has no files left"),
)
_HOME = _arg("--home", metavar="DIR", help="data folder")
_HOST = _arg("--host", help="address to listen on")
_EMBEDDER = _arg("--embedder", metavar="NAME", help="embedding model")
_TOOLSETS = _arg("--toolsets", metavar="NAME,...", help="toolsets at /mcp")
_BACKENDS = (
    _arg("--engine-url", metavar="URL", help="URL of the engine"),
    _arg("--ragler-url", dest="ragler_api_url", metavar="URL", help="URL of RAGler's backend"),
)
_LEVEL = _arg("--log-level", type=str.lower, choices=("debug", "info", "warn", "error"), help="log level")
# Only for `kb up`: the descriptor for the report that the process is ready.
_SUPERVISED = _arg("--supervised", type=int, metavar="FD", help=argparse.SUPPRESS)
_NO_WAIT = _arg("--no-wait", action="store_true", help="do not wait until the note is searchable")

COMMANDS = (
    Command("up", "kb_cli.up:run", "run engine and MCP server together", (
        *_SETTINGS,
        _HOME,
        _arg("--port", help="port of the MCP server"),
        _arg("--engine-port", help="port of the engine"),
        _arg("--single", action="store_true",
             help="run both in one process, for small machines or containers"),
        _TOOLSETS,
        _LEVEL,
    ), ("server", "engine")),
    Command("serve", "kb_cli.run:serve", "run the MCP server over HTTP", (
        *_SETTINGS,
        _HOST,
        _arg("--port", help="port to listen on"),
        _HOME,
        *_BACKENDS,
        _TOOLSETS,
        _arg("--workers", metavar="N", help="number of processes that share the port (default 1)"),
        _LEVEL,
        _SUPERVISED,
    ), ("server",)),
    Command("stdio", "kb_cli.run:stdio", "run an MCP server on stdin and stdout", (
        *_SETTINGS,
        _arg("--toolset", dest="toolsets", metavar="NAME", help="toolset to serve (default: KB_TOOLSETS)"),
        _arg("--file", dest="text_file", metavar="PATH", help="text file of the toolset textfile"),
        _arg("--description", dest="text_description", metavar="TEXT", help="description of the text file"),
        *_BACKENDS,
        _LEVEL,
    ), ("server",)),
    Command("engine", "kb_cli.run:engine", "run the engine over HTTP", (
        *_SETTINGS,
        _HOST,
        _arg("--port", help="port to listen on; 0: any free one"),
        _HOME,
        _EMBEDDER,
        _arg("--linger", type=_number(float, 0, 1e9), metavar="SECONDS",
             help="stop this time after the last `kb stdio` of the data folder (default: never)"),
        _LEVEL,
        _SUPERVISED,
    ), ("engine",)),
    Command(
        "reindex",
        "kb_cli.run:reindex",
        "re-embed a base with another model, while no engine uses it",
        (*_SETTINGS, _JSON, _HOME, _EMBEDDER),
        ("engine",),
    ),
    Command("backup", "kb_cli.backup:backup", "copy a base, even while an engine uses it", (
        *_SETTINGS, _JSON, _HOME,
        _arg("copy", metavar="FOLDER", help="a new folder"),
        _arg("--damaged", action="store_true", help="copy the undamaged parts of a damaged base"),
    ), ("engine",)),
    Command("restore", "kb_cli.backup:restore", "create a base from a copy made by kb backup", (
        *_SETTINGS, _JSON, _HOME,
        _arg("copy", metavar="FOLDER", help="folder written by kb backup"),
    ), ("engine",)),
    Command("migrate", "kb_cli.migrate:run", "copy a base to another database, while no engine uses either", (
        *_SETTINGS, _JSON, _HOME,
        _arg("source", metavar="SOURCE", help="sqlite:PATH or postgresql://USER:PASSWORD@HOST/DATABASE"),
        _arg("target", metavar="TARGET", help="the same for an empty or new base"),
    ), ("engine",)),
    Command("check", "kb_cli.check:run", "check a base for damage, while no engine uses it", (
        *_SETTINGS, _JSON, _HOME, _EMBEDDER,
        _arg("--deep", action="store_true", help="also re-embed all passages and compare their vectors"),
        _arg("--repair", action="store_true", help="rebuild wrong or missing derived data"),
    ), ("engine",)),
    Command("export", "kb_cli.exported.export_command:export", "export a base as readable text files", (
        *_ENGINE,
        *_LABELS,
        _arg("folder", metavar="FOLDER", help="a new folder"),
    )),
    Command("import", "kb_cli.imported.import_command:run", "import a folder of kb export or other data", (
        *_ENGINE,
        *_LABELS,
        _arg("place", metavar="PATH",
             help="folder of kb export, into a base that no engine uses; or, into an engine: Obsidian vault, "
             "folder of basic-memory, JSON export of mcp-memory-service"),
        _arg("--from", dest="kind", choices=KINDS,
             help="format of PATH (default: detected from its contents)"),
        _arg("--dry-run", action="store_true", help="show the documents to send, without sending them"),
        _HOME, _EMBEDDER,
    ), ("server", "engine")),
    Command("sim", "kb_cli.run:simulator", "run a simulated engine with faults on request", (
        *_SETTINGS,
        _arg("--seed", help="seed of random decisions (7)"),
        _HOST,
        _arg("--port", help="port to listen on; 0: any free one (8900)"),
        _arg("--control", metavar="PORT", help="port of the control plane, on loopback (off)"),
        _arg("--clock", choices=("autojump", "manual", "real"), help="clock of the engine (autojump)"),
        _arg("--jobs", metavar="POLICY",
             help="outcome of jobs: at-once (default), polls:N, seconds:S, stuck[:STEP] or fail[:STEP]"),
    )),
    Command("search", "kb_cli.documents:search", "search for passages", (
        *_ENGINE,
        *_LABELS,
        _arg("query", help='words or a question; "a phrase" and -word in it, in single quotes'),
        _arg("--top", type=_number(int, 1, 100), default=10, metavar="N",
             help="maximum number of hits (default 10)"),
        _arg("--mode", choices=get_args(m.Mode), help="search by words, by meaning, or by both (default)"),
        _arg("--fts-only", action="store_true", help="search by words only"),
        _arg("--doc-type", choices=get_args(m.DocType), help="only documents of this type"),
        _arg("--min-score", type=_number(float, 0, 1), default=0.0, metavar="S",
             help="minimum score of hits, from 0 to 1"),
        _arg("--explain", action="store_true", help="explain why each passage was found, and its score"),
        _arg("--full", action="store_true", help="show complete passages"),
    )),
    Command("get", "kb_cli.documents:get", "show a document, or list documents", (
        *_ENGINE,
        *_LABELS,
        _arg("document", nargs="?", metavar="ID", help="number or uid of the document (default: list all)"),
        _arg("--source-path", metavar="PATH", help="list only the documents from this source"),
        _arg("--no-text", action="store_true", help="omit the text"),
        _arg("--original", metavar="FILE", help="save the original file, if the engine keeps it"),
        _arg("--offset", type=_COUNT, default=0, metavar="N", help="number of chunks or documents to skip"),
        _arg("--limit", type=_LIMIT, metavar="N",
             help="maximum number of chunks (default 200) or documents (default 1000)"),
    )),
    Command("collections", "kb_cli.state:collections", "list, show or describe collections", (
        *_ENGINE,
        _arg("collection", nargs="?", metavar="NAME",
             help="name or id of the collection (default: list all)"),
        _arg("--describe", metavar="TEXT", help="set its description"),
        _arg("--created-by", metavar="EMAIL", help="set its creator"),
        _arg("--audience", action="append", metavar="WHO", help="set its target audience; repeatable"),
        _arg("--scenario", action="append", metavar="WHEN",
             help="set its usage scenario; repeatable"),
    )),
    Command("status", "kb_cli.state:status", "show the state of the engine", _ENGINE),
    Command("jobs", "kb_cli.state:jobs", "list, show or retry jobs", (
        *_ENGINE,
        _arg("job", nargs="?", metavar="ID", help="id of the job (default: list recent jobs)"),
        _arg("--retry", action="store_true", help="retry this failed job"),
        _arg("--status", choices=get_args(m.JobStatus), help="only jobs with this status"),
        _arg("--limit", type=_LIMIT, default=50, metavar="N", help="maximum number of jobs (default 50)"),
    )),
    Command("config", "kb_cli.config:show", "show all settings", (*_SETTINGS, _JSON)),
    Command("doctor", "kb_cli.doctor:run", "diagnose the installation and suggest remedies", (
        *_SETTINGS, _ENGINE_URL, _JSON,
    ), ("server",)),
    Command("connect", "kb_cli.connect.connect_command:run",
            "configure an MCP client for kb, or list clients", (
        *_SETTINGS,
        _JSON,
        _arg("client", nargs="?", choices=CLIENTS, metavar="CLIENT",
             help=f"{', '.join(CLIENTS)} (default: list them)"),
        _arg("--endpoint", metavar="URL", help="URL of kb (default: as kb up serves it with the settings)"),
        _arg("--name", default="kb", help="name of kb in the client (default kb)"),
        _arg("--toolsets", default="kb", metavar="NAMES",
             help="toolsets, comma-separated, with an entry for each (default kb)"),
        _arg("--print", action="store_true",
             help="print the configuration without changing the client's file"),
        _arg("--undo", action="store_true", help="remove the configuration"),
        _arg("--yes", action="store_true", help="do not ask for confirmation"),
    ), ("server",)),
    Command("verify", "kb_cli.verify:run", "verify an engine against the contract", (
        *_ENGINE,
        _arg("target", nargs="?", metavar="URL", help="URL of the engine (default: KB_ENGINE_URL)"),
        _arg("--report", metavar="DIR", help="write junit.xml and verification.html to this folder"),
        _arg("--erase", action="store_true",
             help="allow a base that is not empty; all of its documents are removed"),
        _arg("--quick", action="store_true", help="skip the generated requests"),
        _arg("--seed", type=int, default=7, metavar="N",
             help="seed of the generated requests (default 7)"),
        _arg("--examples", type=_LIMIT, default=15, metavar="N",
             help="number of generated requests per operation (default 15)"),
        _arg("--seconds", type=float, default=60.0, metavar="S",
             help="time limit of each of the four phases of generated requests (default 60)"),
        _arg("--timeout", type=_number(float, 1, 3_600), default=90.0, metavar="S",
             help="time-out of a response, in seconds, up to 30 of them waiting for a job (default 90)"),
    ), ("verify",)),
    Command("eval", "kb_cli.evaluation.evaluation_command:run",
            "measure search quality on queries with known answers", (
        *_SETTINGS,
        _arg("--engine", dest="engine_url", metavar="URL",
             help="URL of the engine, for a file of questions (default: KB_ENGINE_URL)"),
        _API_KEY,
        _JSON,
        _EMBEDDER,
        _arg("dataset", nargs="?", metavar="DATASET",
             help="folder in BEIR's layout, ingested into a separate base; or file of questions and "
             "documents, for a running engine"),
        _arg("--from-base", action="store_true",
             help="take questions from the headings of a running engine's documents"),
        _arg("--questions", type=_POSITIVE, default=200, metavar="N",
             help="maximum number of questions from the base (default 200)"),
        _arg("--queries", choices=("all", "odd", "even"), default="all",
             help="use all queries, or those at odd or even positions, counted from 1"),
        _arg("--unanswerable", metavar="FILE", help="file of questions without answers, to measure weak"),
        _arg("--output", metavar="FILE", help="write a line for each question to this file, to compare runs"),
        _arg("--plot", metavar="FILE", help="plot the results to this PNG file"),
        _arg("--compare", nargs=2, metavar=("RUN1", "RUN2"),
             help="list the questions with better and worse results"),
        _arg("--seed", type=_COUNT, default=7, metavar="N",
             help="seed of the confidence intervals (default 7)"),
    ), ("engine",)),
    Command("addnote", "kb_cli.documents:add_note", "add a note", (
        *_ENGINE,
        *_LABELS,
        _arg("text", help="text of the note; -: read from stdin"),
        _arg("--title", help="title (default: beginning of the text)"),
        _arg("--source-path", metavar="PATH", help="path or URL of the source"),
        _NO_WAIT,
    )),
    Command("updatenote", "kb_cli.documents:update_note", "replace the text of a note", (
        *_ENGINE,
        _arg("document_id", type=_POSITIVE, metavar="ID", help="number of the note"),
        _arg("text", help="new text; -: read from stdin"),
        _arg("--title", help="new title"),
        _arg("--expected-version", type=_POSITIVE, metavar="N",
             help="update only if the current version is N"),
        _NO_WAIT,
    )),
    Command("add", "kb_cli.add:run", "add files, folders and web pages", (
        *_ENGINE,
        *_LABELS,
        _arg("paths", nargs="+", metavar="PATH", help="file, folder (recursive), ZIP, mbox or URL"),
        _arg("--no-wait", action="store_true", help="do not wait until the documents are searchable"),
        _arg("--force-ocr", action="store_true",
             help="read PDF by OCR even if it has text; no effect on other types"),
        _arg("--as-text", action="store_true", help="treat files of unknown types as text (UTF-8)"),
        _arg("--encoding", default="", metavar="NAME", help="encoding of texts, like windows-1252 (UTF-8)"),
        _arg("--private", action="store_true", help="also fetch URLs at non-public addresses"),
        _arg("--whole-page", action="store_true", help="keep navigation and footers of fetched pages"),
    )),
    Command("sync", "kb_cli.sync.sync_command:run", "synchronize a collection with a folder", (
        *_ENGINE,
        *_LABELS,
        *_SYNC,
        _arg("--dry-run", action="store_true", help="show the changes without making them"),
    ), ("server",)),
    Command("watch", "kb_cli.sync.sync_command:watch", "keep a collection synchronized with a folder", (
        *_ENGINE, *_LABELS, *_SYNC,
    ), ("server",)),
    Command("rm", "kb_cli.documents:remove", "remove documents", (
        *_ENGINE,
        _arg("documents", nargs="+", metavar="ID", help="number or uid of the document"),
        _arg("--purge", action="store_true", help="keep no copy and no earlier versions"),
        _arg("--yes", action="store_true", help="do not ask for confirmation"),
    )),
    Command("history", "kb_cli.history:run", "show and restore earlier versions and removed documents", (
        *_ENGINE,
        _arg("document", nargs="?", metavar="ID",
             help="number or uid of the document (default: list removed documents)"),
        _arg("version", nargs="?", type=_LIMIT, metavar="VERSION",
             help="show this version, including its text"),
        _arg("--diff", action="store_true", help="show the differences from the current note"),
        _arg("--restore", action="store_true", help="restore this version (default: the latest)"),
        _arg("--purge", action="store_true", help="delete all kept versions"),
        _arg("--offset", type=_COUNT, default=0, metavar="N", help="number of versions to skip"),
        _arg("--limit", type=_LIMIT, default=100, metavar="N",
             help="maximum number of versions (default 100)"),
    )),
    Command("audit", "kb_cli.audit:run", "show or check the audit log (KB_AUDIT)", (
        *_SETTINGS,
        _HOME,
        _JSON,
        _arg("--folder", dest="audit_folder", metavar="DIR",
             help="folder of the audit log (default: KB_AUDIT_FOLDER)"),
        _arg("--who", metavar="NAME", help="only actions of this key name or token subject"),
        _arg("--document", metavar="UID", help="only actions on this document"),
        _arg("--action", metavar="NAME", help="only this operation or tool"),
        _arg("--outcome", metavar="CODE",
             help="only this outcome: ok, an error code, or refused (any error)"),
        _arg("--correlation-id", metavar="ID", help="only actions of this request"),
        _arg("--since", metavar="TIME", help="start of the period, as RFC 3339 in UTC"),
        _arg("--until", metavar="TIME", help="end of the period, as RFC 3339 in UTC"),
        _arg("--limit", type=_COUNT, default=1_000, metavar="N",
             help="number of most recent lines (default 1000)"),
        _arg("--heads", action="store_true",
             help="print the last line of each chain as JSON, for safekeeping"),
        _arg("--check", action="store_true", help="check that no line has been changed"),
        _arg("--known", metavar="FILE", help="also compare with this earlier output of --heads"),
    )),
    Command("move", "kb_cli.documents:move", "move a document to another collection", (
        *_ENGINE,
        _arg("document", metavar="ID", help="number or uid of the document"),
        _arg("to", metavar="COLLECTION", help="name of the new collection"),
        _arg("--new", action="store_true", help="create the collection if it does not exist"),
    ), ("server",)),
    Command("keys", "kb_cli.keys:run", "create, list, revoke and rotate keys", (
        *_SETTINGS, _JSON, _HOME,
        _arg("action", choices=("create", "list", "revoke", "rotate"), help="action"),
        _arg("key", nargs="?", metavar="KEY", help="name or id of the key"),
        _arg("--rights", default="read", metavar="RIGHT,...",
             help="rights of a new key: read, write, delete, administer (default read)"),
        _arg("--collection", action="append", metavar="NAME",
             help="collections of a new key, comma-separated, by NAME or PREFIX* (default: all)"),
        _arg("--toolset", action="append", metavar="NAME",
             help="toolsets of a new key, including pages (default: all)"),
        _arg("--expires", metavar="TIME",
             help="lifetime of a new key, such as 12h, 90d or 4w (default: unlimited)"),
        _arg("--calls-per-minute", type=_COUNT, metavar="N",
             help="maximum number of tool calls per minute with a new key"),
        _arg("--bytes-per-day", type=_COUNT, metavar="N",
             help="maximum number of bytes added per day with a new key"),
        _arg("--documents-per-day", type=_COUNT, metavar="N",
             help="maximum number of documents added per day with a new key"),
        _arg("--uploads-in-flight", type=_COUNT, metavar="N",
             help="maximum number of open uploads of a new key"),
        _arg("--grace", metavar="TIME",
             help="with rotate: time until the old token is revoked (default: at once)"),
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
