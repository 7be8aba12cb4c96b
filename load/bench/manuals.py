"""Searches in ten languages: `bench manuals`.

The documents are translated manual pages of Debian's packages `manpages-*`, downloaded by apt: the first 500
characters behind the synopsis of 40 pages of each language, in one base. A question is the sentence by which
a page names its subject ("list directory contents"), in the language of the page, which is the answer; the
sentence is removed from the page. `kb eval` measures with the embedder of the settings.
"""

from __future__ import annotations

import gzip
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Annotated, ClassVar

import msgspec

from bench import Option
from bench.runner import Report
from bench.sets import Question, Set, ranks_of_kb, whole_set, wilson

LANGUAGES = {
    "de": "German", "es": "Spanish", "fr": "French", "it": "Italian", "ja": "Japanese", "nl": "Dutch",
    "pl": "Polish", "ru": "Russian", "tr": "Turkish", "zh": "Chinese",
}  # fmt: skip
"""Languages by the suffix of their package."""
PAGES, QUESTIONS = 40, 20
"""Number of pages and of questions in each language."""
_LEAST_CHARS, _MOST_CHARS = 400, 500
"""Size of a page's text."""
_FIRST = 10
_SUBJECT = re.compile(r"^\S.*?\s-{1,2}\s+(\S.*)$")
_FOLDERS = ("man1", "man5", "man8")
_ESCAPES = re.compile(r"\\f(?:\[\w*\]|\(\w\w|\w)|\\s[+-]?\d|\\[&|^,/%c:]|\\\*?\(\w\w|\\\*?\[[^\]]*\]|\\\".*")
_JOINED = frozenset({"BR", "BI", "IR", "IB", "RB", "RI"})
"""Macros that join their arguments without a blank."""
_TEXTS = _JOINED | {"B", "I", "SM", "SB", "IP"}
_ARGUMENT = re.compile(r'"((?:[^"]|"")*)"|(\S+)')


class Manual(msgspec.Struct, frozen=True):
    """A manual page: its name, the sentence on its subject, and its text behind the synopsis."""

    name: str
    subject: str
    text: str


def manual(name: str, roff: str) -> Manual | None:
    """Return a page in the macros of `man`; None without a subject or with little text."""
    sections: list[tuple[str, list[str]]] = []
    for line in roff.splitlines():
        macro, _, rest = line[1:].strip().partition(" ") if line[:1] in {".", "'"} else ("", "", line)
        arguments = [_plain(quoted or bare) for quoted, bare in _ARGUMENT.findall(rest)]
        if macro in {"SH", "SS"}:
            sections.append((" ".join(arguments), []))
        elif sections and (not macro or macro in _TEXTS):
            joint = "" if macro in _JOINED else " "
            sections[-1][1].append(joint.join(arguments) if macro else _plain(rest))
        elif sections and macro in {"PP", "P", "LP", "TP"}:
            sections[-1][1].append("")
    if not sections or not (named := _SUBJECT.match(" ".join(sections[0][1]))):
        return None
    text = "\n\n".join("\n".join([f"# {heading}", "", *lines]) for heading, lines in sections[2:])
    subject = named[1].strip(" .")
    text = text.replace(subject, "")[:_MOST_CHARS]
    fits = len(text) >= _LEAST_CHARS and len(subject) > 5 and " - " not in subject
    return Manual(name, subject, text) if fits else None


def _plain(text: str) -> str:
    return _ESCAPES.sub("", text.replace("\\-", "-").replace("\\e", "\\").replace("\\ ", " "))


def set_of(pages: Mapping[str, Mapping[str, str]]) -> Set:
    """Return the set of these pages: their roff by name, by language."""
    documents: dict[str, tuple[str, str]] = {}
    questions: list[Question] = []
    for language, own in pages.items():
        made = [found for name, roff in own.items() if (found := manual(name, roff))]
        chosen = sorted(made, key=lambda each: sha256(each.name.encode()).digest())[:PAGES]
        counts = Counter(each.subject for each in chosen)
        documents |= {f"{language}/{each.name}": (each.name, each.text) for each in chosen}
        for each in islice((each for each in chosen if counts[each.subject] == 1), QUESTIONS):
            questions.append(Question(each.subject, language, f"{language}/{each.name}"))
    return Set(documents, questions)


def _downloaded(language: str) -> dict[str, str]:
    with tempfile.TemporaryDirectory(prefix="bench-manuals-") as folder:
        subprocess.run(["apt-get", "-qq", "download", f"manpages-{language}"], check=True, cwd=folder)
        (package,) = Path(folder).glob("*.deb")
        subprocess.run(["dpkg-deb", "-x", package.name, "."], check=True, cwd=folder)
        return dict(_read(Path(folder)))


def _read(folder: Path) -> Iterator[tuple[str, str]]:
    for path in sorted(folder.glob("usr/share/man/*/*/*.gz")):
        if path.is_file() and path.parent.name in _FOLDERS and not path.is_symlink():
            yield path.name.removesuffix(".gz"), gzip.decompress(path.read_bytes()).decode("utf-8", "replace")


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """Recall@10 of a mode in a language, with its 95 % interval (Wilson)."""

    language: str
    mode: str
    questions: int
    recall: tuple[float, float, float]


class ManualsReport(Report, frozen=True, kw_only=True):
    """Results of a run."""

    columns: ClassVar = {
        "language": "{0.language}",
        "mode": "{0.mode}",
        "questions": "{0.questions}",
        "recall@10": "{0.recall[0]:.2f} ({0.recall[1]:.2f} to {0.recall[2]:.2f})",
    }
    found: list[Found]

    def rows(self) -> list[Found]:
        return self.found


def run(
    *,
    folder: Annotated[Path | None, Option("keep the set in this folder, and use the one in it")] = None,
    note: Callable[[str], None],
) -> ManualsReport:
    """Write the set if the folder lacks it, and measure it with the embedder of the settings.

    Raises:
        subprocess.CalledProcessError: a download or the evaluation failed.
    """
    with tempfile.TemporaryDirectory(prefix="bench-manuals-") as scratch:
        home = folder or Path(scratch) / "set"
        if not home.exists():
            note("downloading the manual pages")
            set_of({language: _downloaded(language) for language in LANGUAGES}).write(home)
        whole = Path(scratch) / "whole"
        whole_set(home, whole)
        note("asking")
        found = []
        for mode, ranks in ranks_of_kb(whole).items():
            of_all = Counter(question.partition("-")[0] for question in ranks)
            right = Counter(q.partition("-")[0] for q, rank in ranks.items() if rank and rank <= _FIRST)
            for language, name in [*LANGUAGES.items(), (None, "all")]:
                hits, of = (count[language] if language else count.total() for count in (right, of_all))
                found.append(Found(language=name, mode=mode, questions=of, recall=wilson(hits, of)))
    return ManualsReport(found=found)
