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
from collections.abc import Mapping, Sequence
from functools import partial
from importlib import import_module
from itertools import takewhile
from typing import Any, get_args

from kb_cli import VERSION
from kb_cli.commands import (
    COUNT,
    EMBEDDER,
    ENGINE,
    ENGINE_URL,
    GROUPS,
    HOME,
    JSON,
    LABELS,
    LIMIT,
    POSITIVE,
    SETTINGS,
    Argument,
    Command,
    arg,
    number,
)
from kb_cli.output import EXIT_STATUSES, CliError, Exit, Output, did_you_mean, printable_line
from kb_cli.parts import parts
from kb_config.installing import install_command
from kb_config.parts import imported
from kb_config.settings import SettingsError
from kb_contracts.api import models as m

_EXAMPLES = """\
Examples
  kb up                                           start engine and MCP server
  kb add reports/ --collection documents          add a folder
  kb search "pension revaluation" --top 5         find passages
  kb addnote "User prefers short answers" --collection memory

`kb COMMAND --help` shows the arguments of a command; `kb config` shows all settings.
Options override the environment, which overrides the file of --config, KB_CONFIG or ./kb.toml.

"""
_SHARED = ("--config", "--url", "--api-key", "--json", "--home")
"""Options of many commands, which stand last in their help."""
_OTHER_NAMES = {
    **dict.fromkeys(("remove", "delete"), "rm"),
    **dict.fromkeys(("list", "ls", "show", "view"), "get"),
    "edit": "updatenote",
}
"""Names of commands in other programs, with the command of kb that is suggested."""
_SHELLS = ("bash", "zsh", "fish")

_HOST = arg("--host", help="address to listen on")
_TOOLSETS = arg("--toolsets", metavar="NAME,...", help="toolsets at /mcp")
_BACKENDS = (
    arg("--engine-url", metavar="URL", help="URL of the engine"),
    arg("--ragler-url", dest="ragler_api_url", metavar="URL", help="URL of RAGler's backend"),
)
_LEVEL = arg("--log-level", type=str.lower, choices=("debug", "info", "warn", "error"), help="log level")
# Only for `kb up`: the descriptor for the report that the process is ready.
_SUPERVISED = arg("--supervised", type=int, metavar="FD", help=argparse.SUPPRESS)
_NO_WAIT = arg("--no-wait", action="store_true", help="do not wait until the note is searchable")

_CORE = (
    Command("up", "run", "kb_cli.up:run", "run engine and MCP server together", (
        *SETTINGS, HOME,
        arg("--port", help="port of the MCP server (default 3000)"),
        arg("--engine-port", help="port of the engine (default 8000)"),
        arg("--single", action="store_true",
             help="run both in one process, for small machines or containers"),
        _TOOLSETS, _LEVEL,
    ), ("server", "engine")),
    Command("serve", "run", "kb_cli.run:serve", "run the MCP server over HTTP", (
        *SETTINGS, _HOST,
        arg("--port", help="port to listen on"),
        HOME, *_BACKENDS, _TOOLSETS,
        arg("--workers", metavar="N", help="number of processes that share the port (default 1)"),
        _LEVEL, _SUPERVISED,
    ), ("server",)),
    Command("stdio", "run", "kb_cli.run:stdio", "run an MCP server on stdin and stdout", (
        *SETTINGS,
        arg("--toolset", dest="toolsets", metavar="NAME", help="toolset to serve (default: KB_TOOLSETS)"),
        arg("--file", dest="text_file", metavar="PATH", help="text file of the toolset textfile"),
        arg("--description", dest="text_description", metavar="TEXT", help="description of the text file"),
        *_BACKENDS, _LEVEL,
    ), ("server",)),
    Command("engine", "run", "kb_cli.run:engine", "run the engine over HTTP", (
        *SETTINGS, _HOST,
        arg("--port", help="port to listen on; 0: any free one"),
        HOME, EMBEDDER,
        arg("--linger", type=number(float, 0, 1e9), metavar="SECONDS",
             help="stop this time after the last `kb stdio` of the data folder (default: never)"),
        arg("--originals-bytes", help=argparse.SUPPRESS),
        _LEVEL, _SUPERVISED,
    ), ("engine",)),
    Command(
        "reindex", "keep",
        "kb_cli.run:reindex",
        "re-embed an unused base with another model",
        (*SETTINGS, JSON, HOME, EMBEDDER),
        ("engine",),
    ),
    Command("backup", "keep", "kb_cli.backup:backup", "copy a base, even while an engine uses it", (
        *SETTINGS, JSON, HOME,
        arg("copy", metavar="FOLDER", help="a new folder"),
        arg("--damaged", action="store_true", help="copy the undamaged parts of a damaged base"),
    ), ("engine",)),
    Command("restore", "keep", "kb_cli.backup:restore", "create a base from a copy made by kb backup", (
        *SETTINGS, JSON, HOME,
        arg("copy", metavar="FOLDER", help="folder written by kb backup"),
    ), ("engine",)),
    Command("migrate", "keep", "kb_cli.migrate:run", "copy a base to another database, both unused", (
        *SETTINGS, JSON, HOME,
        arg("source", metavar="SOURCE", help="sqlite:PATH or postgresql://USER:PASSWORD@HOST/DATABASE"),
        arg("target", metavar="TARGET", help="the same for an empty or new base"),
    ), ("engine",)),
    Command("check", "prove", "kb_cli.check:run", "check an unused base for damage", (
        *SETTINGS, JSON, HOME, EMBEDDER,
        arg("--deep", action="store_true", help="also re-embed all passages and compare their vectors"),
        arg("--repair", action="store_true", help="rebuild wrong or missing derived data"),
    ), ("engine",)),
    Command("sim", "prove", "kb_cli.run:simulator", "run a simulated engine with faults on request", (
        *SETTINGS,
        arg("--seed", help="seed of random decisions (7)"),
        _HOST,
        arg("--port", help="port to listen on; 0: any free one (8900)"),
        arg("--control", metavar="PORT", help="port of the control plane, on loopback (off)"),
        arg("--clock", choices=("autojump", "manual", "real"), help="clock of the engine (autojump)"),
        arg("--jobs", metavar="POLICY",
             help="outcome of jobs: at-once (default), polls:N, seconds:S, stuck[:STEP] or fail[:STEP]"),
    )),
    Command("search", "find", "kb_cli.documents:search", "search for passages", (
        *ENGINE, *LABELS,
        arg("query", nargs="+", help='words or a question; "a phrase" and -word in it, in single quotes'),
        arg("--top", type=number(int, 1, 100), default=10, metavar="N",
             help="maximum number of hits (default 10)"),
        arg("--mode", choices=get_args(m.Mode), help="search by words, by meaning, or by both (default)"),
        arg("--fts-only", action="store_true", help="search by words only"),
        arg("--doc-type", choices=get_args(m.DocType), help="only documents of this type"),
        arg("--min-score", type=number(float, 0, 1), default=0.0, metavar="S",
             help="minimum score of hits, from 0 to 1"),
        arg("--explain", action="store_true", help="explain why each passage was found, and its score"),
        arg("--full", action="store_true", help="show complete passages, also of distant hits"),
    )),
    Command("get", "find", "kb_cli.documents:get", "show a document, or list documents", (
        *ENGINE, *LABELS,
        arg("document", nargs="?", metavar="ID", help="number or uid of the document (default: list all)"),
        arg("--source-path", metavar="PATH", help="list only the documents from this source"),
        arg("--no-text", action="store_true", help="omit the text"),
        arg("--original", metavar="FILE", help="save the original file, if the engine keeps it"),
        arg("--offset", type=COUNT, default=0, metavar="N", help="number of passages or documents to skip"),
        arg("--limit", type=LIMIT, metavar="N",
             help="maximum number of passages (default 200) or documents (default 1000)"),
    )),
    Command("collections", "find", "kb_cli.state:collections", "list, show or describe collections", (
        *ENGINE,
        arg("collection", nargs="?", metavar="NAME", help="name or id of the collection (default: list all)"),
        arg("--describe", metavar="TEXT", help="set its description"),
        arg("--created-by", metavar="EMAIL", help="set its creator"),
        arg("--audience", action="append", metavar="WHO", help="set its target audience; repeatable"),
        arg("--scenario", action="append", metavar="WHEN", help="set its usage scenario; repeatable"),
    )),
    Command("status", "run", "kb_cli.state:status", "show the state of the engine", ENGINE),
    Command("jobs", "run", "kb_cli.state:jobs", "list, show or retry jobs", (
        *ENGINE,
        arg("job", nargs="?", metavar="ID", help="id of the job (default: list recent jobs)"),
        arg("--retry", action="store_true", help="retry this failed job"),
        arg("--status", choices=get_args(m.JobStatus), help="only jobs with this status"),
        arg("--limit", type=LIMIT, default=50, metavar="N", help="maximum number of jobs (default 50)"),
    )),
    Command("config", "run", "kb_cli.config:show", "show all settings", (*SETTINGS, JSON)),
    Command("completion", "run", "kb_cli.completion:run", "print the completion script of a shell", (
        arg("shell", choices=_SHELLS, help="bash, zsh or fish"),
    )),
    Command("doctor", "prove", "kb_cli.doctor:run", "diagnose the installation and suggest remedies", (
        *SETTINGS, ENGINE_URL, JSON,
    ), ("server",)),
    Command("verify", "prove", "kb_cli.verify:run", "verify an engine against the contract", (
        *ENGINE,
        arg("target", nargs="?", metavar="URL", help="URL of the engine (default: KB_ENGINE_URL)"),
        arg("--report", metavar="DIR", help="write junit.xml and verification.html to this folder"),
        arg("--erase", action="store_true",
             help="allow a base that is not empty; all of its documents are removed"),
        arg("--quick", action="store_true", help="skip the generated requests"),
        arg("--seed", type=int, default=7, metavar="N", help="seed of the generated requests (default 7)"),
        arg("--examples", type=LIMIT, default=15, metavar="N",
             help="number of generated requests per operation (default 15)"),
        arg("--seconds", type=float, default=60.0, metavar="S",
             help="time limit of each of the four phases of generated requests (default 60)"),
        arg("--timeout", type=number(float, 1, 3_600), default=90.0, metavar="S",
             help="time-out of a response, in seconds, up to 30 of them waiting for a job (default 90)"),
    ), ("verify",)),
    Command("addnote", "add", "kb_cli.documents:add_note", "add a note", (
        *ENGINE, *LABELS,
        arg("text", nargs="+", help="text of the note; -: read from stdin"),
        arg("--title", help="title (default: beginning of the text)"),
        arg("--source-path", metavar="PATH", help="path or URL of the source"),
        _NO_WAIT,
    )),
    Command("updatenote", "add", "kb_cli.documents:update_note", "replace the text of a note", (
        *ENGINE,
        arg("document_id", type=POSITIVE, metavar="ID", help="number of the note"),
        arg("text", nargs="+", help="new text; -: read from stdin"),
        arg("--title", help="new title"),
        arg("--expected-version", type=POSITIVE, metavar="N", help="update only if the current version is N"),
        _NO_WAIT,
    )),
    Command("add", "add", "kb_cli.add:run", "add files, folders and web pages", (
        *ENGINE, *LABELS,
        arg("paths", nargs="+", metavar="PATH", help="file, folder (recursive), ZIP, mbox or URL"),
        arg("--no-wait", action="store_true", help="do not wait until the documents are searchable"),
        arg("--force-ocr", action="store_true",
             help="read PDF by OCR even if it has text; no effect on other types"),
        arg("--as-text", action="store_true", help="treat files of unknown types as text (UTF-8)"),
        arg("--encoding", default="", metavar="NAME", help="encoding of texts, like windows-1252 (UTF-8)"),
        arg("--private", action="store_true", help="also fetch URLs at non-public addresses"),
        arg("--whole-page", action="store_true", help="keep navigation and footers of fetched pages"),
    )),
    Command("rm", "keep", "kb_cli.documents:remove", "remove documents", (
        *ENGINE,
        arg("documents", nargs="+", metavar="ID", help="number or uid of the document"),
        arg("--purge", action="store_true", help="keep no copy and no earlier versions"),
        arg("--yes", action="store_true", help="do not ask for confirmation"),
    )),
    Command("history", "keep", "kb_cli.history:run", "show and restore versions and removed documents", (
        *ENGINE,
        arg("document", nargs="?", metavar="ID",
             help="number or uid of the document (default: list removed documents)"),
        arg("version", nargs="?", type=LIMIT, metavar="VERSION",
             help="show this version, including its text"),
        arg("--diff", action="store_true", help="show the differences from the current note"),
        arg("--restore", action="store_true", help="restore this version (default: the latest)"),
        arg("--purge", action="store_true", help="delete all kept versions"),
        arg("--offset", type=COUNT, default=0, metavar="N", help="number of versions to skip"),
        arg("--limit", type=LIMIT, default=100, metavar="N", help="maximum number of versions (default 100)"),
    )),
    Command("audit", "prove", "kb_cli.audit:run", "show or check the audit log (KB_AUDIT)", (
        *SETTINGS, HOME, JSON,
        arg("--folder", dest="audit_folder", metavar="DIR",
             help="folder of the audit log (default: KB_AUDIT_FOLDER)"),
        arg("--who", metavar="NAME", help="only actions of this key name or token subject"),
        arg("--document", metavar="UID", help="only actions on this document"),
        arg("--action", metavar="NAME", help="only this operation or tool"),
        arg("--outcome", metavar="CODE", help="only this outcome: ok, an error code, or refused (any error)"),
        arg("--correlation-id", metavar="ID", help="only actions of this request"),
        arg("--since", metavar="TIME", help="start of the period, as RFC 3339 in UTC"),
        arg("--until", metavar="TIME", help="end of the period, as RFC 3339 in UTC"),
        arg("--limit", type=COUNT, default=1_000, metavar="N",
             help="number of most recent lines (default 1000)"),
        arg("--heads", action="store_true",
             help="print the last line of each chain as JSON, for safekeeping"),
        arg("--check", action="store_true", help="check that no line has been changed"),
        arg("--known", metavar="FILE", help="also compare with this earlier output of --heads"),
    )),
    Command("move", "keep", "kb_cli.documents:move", "move a document to another collection", (
        *ENGINE,
        arg("document", metavar="ID", help="number or uid of the document"),
        arg("to", metavar="COLLECTION", help="name of the new collection"),
        arg("--new", action="store_true", help="create the collection if it does not exist"),
    ), ("server",)),
    Command("tag", "keep", "kb_cli.documents:tag", "add and remove tags of a document", (
        *ENGINE,
        arg("document", nargs="?", metavar="ID", help="number or uid of the document"),
        arg("changes", nargs=argparse.REMAINDER, metavar="+TAG|-TAG",
             help="+TAG adds a tag, -TAG removes it; options come before ID, and -- before --TAG"),
    )),
    Command("keys", "run", "kb_cli.keys:run", "create, list, revoke and rotate keys", (
        *SETTINGS, JSON, HOME,
        arg("action", choices=("create", "list", "revoke", "rotate"), help="action"),
        arg("key", nargs="?", metavar="KEY", help="name of the key; of an existing one its name or id"),
        arg("--rights", default="read", metavar="RIGHT,...",
             help="rights of a new key: read, write, delete, administer (default read)"),
        arg("--collection", action="append", metavar="NAME",
             help="collections of a new key, comma-separated, by NAME or PREFIX* (default: all)"),
        arg("--toolset", action="append", metavar="NAME",
             help="toolsets of a new key, including pages (default: all)"),
        arg("--expires", metavar="TIME",
             help="lifetime of a new key, such as 12h, 90d or 4w (default: unlimited)"),
        arg("--calls-per-minute", type=COUNT, metavar="N",
             help="maximum number of tool calls per minute with a new key"),
        arg("--bytes-per-day", type=COUNT, metavar="N",
             help="maximum number of bytes added per day with a new key"),
        arg("--documents-per-day", type=COUNT, metavar="N",
             help="maximum number of documents added per day with a new key"),
        arg("--uploads-in-flight", type=COUNT, metavar="N",
             help="maximum number of open uploads of a new key"),
        arg("--grace", metavar="TIME",
             help="with rotate: time until the old token is revoked (default: at once)"),
    )),
)  # fmt: skip


def commands() -> tuple[Command, ...]:
    """Return all commands: those of the core, then those of the optional parts."""
    return (*_CORE, *(command for part in parts() for command in part.commands))


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of `kb`. Its results have `run` and `extras` of their `Command`."""
    return _build_parsers(commands())[0]


def _build_parsers(
    given: Sequence[Command],
) -> tuple[argparse.ArgumentParser, Mapping[str, argparse.ArgumentParser]]:
    """Return the parser of `kb`, and the parsers of these commands by name."""
    formatter = partial(argparse.RawDescriptionHelpFormatter, max_help_position=30)
    parser = _Root(prog="kb", usage="kb COMMAND [ARGUMENTS]", given=given)
    parser.add_argument("-V", "--version", action="version", version=f"kb {VERSION}")
    parsers = parser.add_subparsers(
        metavar="COMMAND", dest="command", required=True, parser_class=argparse.ArgumentParser
    )
    for command in given:
        one = parsers.add_parser(
            command.name,
            prog=f"kb {command.name}",
            help=command.summary,
            usage=f"kb {command.name} [OPTIONS]{''.join(map(_positional, command.arguments))}",
            description=command.summary[0].upper() + command.summary[1:] + ".",
            epilog="`kb --help` lists the exit statuses, and where settings come from.",
            formatter_class=formatter,
            allow_abbrev=False,
        )
        shared = one.add_argument_group("common options")
        for names, options in command.arguments:
            (shared if names[0] in _SHARED else one).add_argument(*names, **options)
        one.set_defaults(run=command.run, extras=command.extras)
    return parser, parsers.choices


class _Root(argparse.ArgumentParser):
    """The parser of `kb`, whose help lists the commands by purpose."""

    def __init__(self, given: Sequence[Command], **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)
        self._given = given

    def format_help(self) -> str:
        """Return the help of `kb`."""
        lines = [self.format_usage(), "A knowledge base that AI agents use over MCP.", ""]
        for group, heading in GROUPS.items():
            members = [f"  {each.name:<14}{each.summary}" for each in self._given if each.group == group]
            lines += [heading, *members, ""]
        return "\n".join(lines) + "\n" + _EXAMPLES + EXIT_STATUSES


def _positional(argument: Argument) -> str:
    """Return an argument as in a usage line; empty for an option."""
    name, options = argument.names[0], argument.options
    if name.startswith("-"):
        return ""
    label = options.get("metavar") or "|".join(options.get("choices", ())) or name.upper()
    return {"?": f" [{label}]", "+": f" {label} ...", argparse.REMAINDER: f" {label} ..."}.get(
        options.get("nargs", ""), f" {label}"
    )


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the parsed `arguments`. An error shows the usage of its own command, and the most similar name.
    Raises SystemExit: as argparse does, with 0 or 2.
    """
    match arguments:
        case ["help", *others]:
            arguments = [*others, "--help"]
        case ["version", *others]:
            arguments = ["--version", *others]
    place = next((place for place, each in enumerate(arguments) if not each.startswith("-")), len(arguments))
    # A command needs no other parser, and one of the core no optional part. The help of `kb` needs all.
    first = arguments[:1]
    given = [each for each in _CORE if [each.name] == first]
    given = given or [each for each in commands() if [each.name] == first] or [*commands()]
    root, parsers = _build_parsers(given)
    parser = root
    _check_options(parser, arguments[:place], ["--version", "--help"])
    for command in given:
        if [command.name] == arguments[place : place + 1]:
            parser = parsers[command.name]
            names = [name for argument in command.arguments for name in argument.names]
            _check_options(parser, arguments[place + 1 :], [*names, "--help"])
    if place < len(arguments) and arguments[place] not in parsers:
        meant = _OTHER_NAMES.get(arguments[place], arguments[place])
        hint = did_you_mean(meant, [*parsers, "help", "version"])
        parser.error(f"there is no command {arguments[place]!r}{hint or '; kb help lists them'}")
    if not arguments:
        root.print_help(sys.stderr)
        raise SystemExit(Exit.USAGE)
    options, others = root.parse_known_args(arguments)
    if others:
        parser.error(f"too many arguments: {' '.join(others)}")
    return options


def _check_options(parser: argparse.ArgumentParser, arguments: Sequence[str], names: Sequence[str]) -> None:
    """Refuse the first long option that is not among `names`."""
    for argument in takewhile(lambda each: each != "--", arguments):
        name = argument.partition("=")[0]
        # argparse takes an argument with a space as text, even if it begins with dashes.
        if name.startswith("--") and " " not in argument and name not in names:
            options = [each for each in names if each.startswith("--")]
            of_engine = name == "--home" and "--url" in names
            hint = "; KB_HOME=DIR names the data folder" if of_engine else did_you_mean(name, options)
            parser.error(f"there is no option {name}{hint}")


def dispatch(arguments: Sequence[str]) -> int:
    """Run the command of `arguments`; return the exit status. Raises SystemExit as argparse, with 0 or 2."""
    if "_ARGCOMPLETE" in os.environ:  # the shell asks what may follow
        import_module("argcomplete").autocomplete(build_parser())
    options = _parse(arguments)
    # A terminal that cannot show a character gets its escape, so that no output fails for that reason.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        run = imported(options.run)
        status = run(options, Output(as_json=getattr(options, "json", False))) or Exit.OK
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
