"""The command `kb eval`: search in all modes, compute the metrics, and print tables, JSON or a plot."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from kb_cli.config import engine
from kb_cli.evaluation import runs
from kb_cli.evaluation.bases import Base, RunningBase, scratch_base
from kb_cli.evaluation.dataset import Dataset, Question, own_questions
from kb_cli.evaluation.metrics import Difference, Interval, scores_of
from kb_cli.evaluation.proposals import Worst, proposed, worst
from kb_cli.output import CliError, Output, UsageError
from kb_config.installing import install_command
from kb_contracts.api import models as m
from kb_contracts.api.operations import SEARCH

_FIRST = 10
_MOST_CHANGES = 10
_QUESTION_CHARS = 80


def run(options: argparse.Namespace, out: Output) -> None:
    """Evaluate, or compare two runs."""
    if options.compare is not None:
        if options.dataset is not None:
            raise UsageError("--compare takes two runs, as --output wrote them, and no dataset")
        before, after = (runs.read_run(Path(name)) for name in options.compare)
        compared = runs.compare(before, after, options.seed)
        if not out.answered(compared):
            _print_comparison(compared, out)
        return
    if options.from_base and options.dataset is not None:
        raise UsageError("--from-base proposes the questions itself, and takes no dataset")
    if options.dataset is None and not options.from_base:
        raise UsageError("name a dataset, a file of questions, or two runs to --compare")
    for path in filter(None, (options.output, options.plot)):
        if not Path(path).parent.is_dir():  # fail before minutes of work rather than after
            raise UsageError(f"{path}: there is no such folder")
    plot = _plotter(options.plot)
    unanswerable = _unanswerable(options.unanswerable)
    low: list[Worst] = []
    if options.from_base:
        name = "headings of the base"
        judged, low = _on_headings(options, unanswerable, out)
    else:
        name = Path(options.dataset).name
        measure = _on_scratch if Path(options.dataset).is_dir() else _on_running
        judged = measure(options, Path(options.dataset), unanswerable, out)
    if options.output is not None:
        runs.write_run(Path(options.output), judged)
    found = runs.figures(judged, options.seed)
    plot(found, name)
    if not out.answered({"figures": found, "worst": low} if options.from_base else found):
        _print(found, out)
        if low:
            rows = [
                [each.question[:_QUESTION_CHARS], each.document, f"{each.ndcg:.3f}", each.reason]
                for each in low
            ]
            out.table(["worst questions", "document", runs.MAIN, "reason"], rows)


def _on_scratch(
    options: argparse.Namespace, folder: Path, unanswerable: Sequence[Question], out: Output
) -> list[runs.Judged]:
    if options.engine_url is not None:
        why = "a dataset is measured on a base of its own; --engine is for a file of questions"
        raise UsageError(why)
    dataset = Dataset.read(folder, options.queries)
    with scratch_base(options) as base:
        with _progress(out, "documents", dataset.documents) as advance:
            base.take_in(dataset, advance)
        return _ask(base, [*dataset.questions, *unanswerable], out)


def _on_running(
    options: argparse.Namespace, file: Path, unanswerable: Sequence[Question], out: Output
) -> list[runs.Judged]:
    if options.embedder is not None:
        raise UsageError("a running engine has its embedder; --embedder is for a dataset")
    own = own_questions(file, options.queries)
    with engine(options) as client:
        base = RunningBase(client)
        return _ask(base, [*base.questions(own), *unanswerable], out)


def _on_headings(
    options: argparse.Namespace, unanswerable: Sequence[Question], out: Output
) -> tuple[list[runs.Judged], list[Worst]]:
    with engine(options) as client:
        documents = list(client.documents())
        questions = proposed(client, documents, options.questions, options.seed)
        judged = _ask(RunningBase(client), [*questions, *unanswerable], out)
    titles = {str(document.id): document.title for document in documents}
    return judged, worst([each for each in judged if each.gains], titles)


def _unanswerable(name: str | None) -> list[Question]:
    if name is None:
        return []
    own = own_questions(Path(name))
    return [Question(f"unanswerable {line.number}", each.question, {}) for line, each in own]


def _ask(base: Base, questions: Sequence[Question], out: Output) -> list[runs.Judged]:
    """Search for each question in each mode: for ten results, as a caller does, and for the ranking."""
    judged = []
    with _progress(out, "questions", len(questions)) as advance:
        for question in questions:
            modes: dict[m.Mode, runs.Answered] = {}
            for mode in runs.MODES:
                request = m.SearchRequest(query=question.text, mode=mode, top=_FIRST)
                response = base.client.call(SEARCH, body=request)
                ranking = base.ranking(question.text, mode) if question.gains else []
                scores = scores_of(ranking, question.gains) if question.gains else {}
                modes[mode] = runs.Answered(scores, ranking[:_FIRST], response.took_ms, response.weak)
            judged.append(runs.Judged(question.id, question.text, dict(question.gains), modes))
            advance()
    return judged


@contextmanager
def _progress(out: Output, what: str, total: int) -> Iterator[Callable[[], None]]:
    """Yield the callback of a bar on stderr, if that is a terminal; the bar vanishes at the end."""
    if not out.stderr.isatty():
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(file=out.stderr), transient=True) as bars:
        task = bars.add_task(what, total=total)
        yield lambda: bars.advance(task)


def _print(found: Mapping[m.Mode, runs.Figures], out: Output) -> None:
    rows = []
    for mode, each in found.items():
        cells = [_with_interval(value, each.intervals[name]) for name, value in each.means().items()]
        times = [f"{each.latency_ms[share]:.1f}" for share in ("p50", "p95")]
        missed = f"{each.weak.missed:.0%}" if each.weak.unanswerable else ""
        weak = [f"{each.weak.false_alarms:.0%}", missed]
        rows.append([mode, *cells, *times, *weak])
    header = ["mode", *found["hybrid"].means(), "p50 ms", "p95 ms", "weak: false alarms", "weak: missed"]
    out.table(header, rows, title=f"{found['hybrid'].questions} questions")
    rows = []
    for name in found["hybrid"].kinds:
        kinds = {mode: each.kinds[name] for mode, each in found.items()}
        over = kinds["hybrid"].over_better_half
        cells = [_with_interval(kind.ndcg, kind.interval) for kind in kinds.values()]
        rows.append([name, str(kinds["hybrid"].questions), *cells, _difference(over) if over else ""])
    out.table([f"{runs.MAIN} by kind", "questions", *runs.MODES, "hybrid over the better half"], rows)
    if parts := found["hybrid"].parts:
        out.facts(
            [
                ("hybrid over fts", _difference(parts.over_fts)),
                ("hybrid over vector", _difference(parts.over_vector)),
                ("its relevant documents", ", ".join(f"{n} {name}" for name, n in parts.relevant.items())),
            ]
        )


def _print_comparison(compared: Mapping[m.Mode, runs.Comparison], out: Output) -> None:
    rows = [
        [mode, name, _difference(each), str(each.better), str(each.worse)]
        for mode, comparison in compared.items()
        for name, each in comparison.metrics.items()
    ]
    title = f"{compared['hybrid'].questions} questions of both runs"
    out.table(["mode", "metric", "difference", "better", "worse"], rows, title=title)
    changes = [
        [mode, word, each.id, f"{each.before:.3f}", f"{each.after:.3f}", each.question[:_QUESTION_CHARS]]
        for mode, comparison in compared.items()
        for word, every in (("better", comparison.better), ("worse", comparison.worse))
        for each in every[:_MOST_CHANGES]
    ]
    out.table(["mode", "", "question", "before", "after", runs.MAIN], changes)


def _with_interval(value: float, interval: Interval) -> str:
    low, high = interval
    return f"{value:.3f} ({low:.3f} to {high:.3f})"


def _difference(each: Difference) -> str:
    low, high = each.interval
    return f"{each.difference:+.3f} ({low:+.3f} to {high:+.3f})"


class _Bar(NamedTuple):
    mode: str
    name: str
    value: float
    interval: Interval


def _plotter(path: str | None) -> Callable[[Mapping[m.Mode, runs.Figures], str], None]:
    """Return the function that draws the figures into `path`; fail now if that is not possible."""
    if path is None:
        return lambda _found, _name: None
    try:
        import_module("matplotlib")
        from kb_load.report import Sheet
    except ModuleNotFoundError as error:
        needed = f"--plot: the package {error.name} is not installed; install it with: "
        raise CliError(needed + install_command("load")) from error

    def draw(found: Mapping[m.Mode, runs.Figures], name: str) -> None:
        sheet = Sheet(2, title=f"{name}: {found['hybrid'].questions} questions, with intervals of 95 %")
        metrics = [
            _Bar(mode, metric, value, each.intervals[metric])
            for mode, each in found.items()
            for metric, value in each.means().items()
        ]
        kinds = [
            _Bar(mode, name, kind.ndcg, kind.interval)
            for mode, each in found.items()
            for name, kind in each.kinds.items()
        ]
        form = {"group": "{0.name}", "bar": "{0.mode}", "height": "value", "label": "{0.value:.2f}"}
        for bars, label in ((metrics, "share"), (kinds, runs.MAIN)):
            sheet.compare(bars, **form, y=label, interval="interval")
        sheet.save(Path(path))

    return draw
