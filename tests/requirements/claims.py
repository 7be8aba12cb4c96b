"""The list of requirements compared with the tests, in both directions.

`kb_verify/requirements.toml` lists the requirements, `@pytest.mark.requirement("K22")` on a test names the
ones that it proves. The marks are read from the source instead of pytest's collection, so that a test that is
skipped on this machine still counts, and the check takes a fraction of a second.
"""

from __future__ import annotations

import ast
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import kb_verify
from kb_verify.requirements import Manifest, RequirementsError

MAX_CLAIMS = 5
"""Maximum number of requirements that one test may claim; a test with more proves none of them well."""

SUITE = Path(kb_verify.__file__).with_name("suite")
"""The tests of the engine API that are installed with kb."""

_NOT_OURS = frozenset({"node_modules"})


@dataclass(frozen=True, slots=True)
class Claim:
    """A test (`path::Class::function`, the path relative to its root) and the ids that it claims."""

    test: str
    ids: tuple[str, ...]


def collect_claims(*roots: Path) -> list[Claim]:
    """Return the claims of the tests under `roots`, one for each test function with a mark.

    A function inherits the marks of its class and of its module's `pytestmark`. A mark inside
    `pytest.param(...)` counts for its function. Installed packages of other projects are skipped.

    Raises:
        RequirementsError: a file is not Python, or a mark has arguments other than literal strings.
    """
    claims: list[Claim] = []
    for root in roots:
        for folder, folders, files in os.walk(root):
            folders[:] = sorted(name for name in folders if name not in _NOT_OURS)
            for path in (Path(folder, name) for name in sorted(files) if name.endswith(".py")):
                source = path.read_bytes()
                if b"requirement" not in source:  # to parse the others would take most of the time
                    continue
                try:
                    module = ast.parse(source, str(path))
                except (SyntaxError, ValueError) as error:
                    raise RequirementsError(f"{path}: {error}") from error
                claims += _claims_in(module.body, path.relative_to(root).as_posix(), (), path)
    return claims


def _claims_in(
    body: Sequence[ast.stmt], prefix: str, inherited: tuple[str, ...], path: Path
) -> Iterator[Claim]:
    assigned = [node for node in body if isinstance(node, ast.Assign)]
    pytestmarks = [node.value for node in assigned if "pytestmark" in map(ast.unparse, node.targets)]
    ids = (*inherited, *_marks(pytestmarks, path))
    for node in body:
        if isinstance(node, ast.ClassDef) and node.name.startswith("Test"):
            own = _marks(node.decorator_list, path)
            yield from _claims_in(node.body, f"{prefix}::{node.name}", (*ids, *own), path)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test"):
            claimed = tuple(dict.fromkeys((*ids, *_marks(node.decorator_list, path))))
            if claimed:
                yield Claim(f"{prefix}::{node.name}", claimed)


def _marks(expressions: Iterable[ast.expr], path: Path) -> Iterator[str]:
    for expression in expressions:
        for node in ast.walk(expression):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.requirement":
                for argument in node.args:
                    if not (isinstance(argument, ast.Constant) and isinstance(argument.value, str)):
                        raise RequirementsError(
                            f"{path}:{argument.lineno}: a requirement mark takes literal strings"
                        )
                    yield argument.value


def check(manifest: Manifest, claims: Sequence[Claim]) -> Iterator[str]:
    """Yield every disagreement between `manifest` and `claims` as a sentence."""
    claimed = {id_ for claim in claims for id_ in claim.ids}
    for id_, count in Counter(entry.id for entry in manifest.requirements).items():
        if count > 1:
            yield f"{id_} stands {count} times in the manifest"
    for entry in manifest.requirements:
        if entry.deferred is not None or entry.context:
            if not (entry.deferred or "").strip():
                yield f"{entry.id} is deferred without a reason"
            if entry.id in claimed:
                yield f"{entry.id} is deferred and has a test: the deferral is stale"
        elif entry.id not in claimed:
            yield f"{entry.id} has no test: {entry.text}"
    by_id = {entry.id: entry for entry in manifest.requirements}
    for claim in claims:
        for id_ in claim.ids:
            if id_ not in by_id:
                yield f"{claim.test} names {id_}, which is not in the manifest"
        if len(claim.ids) > MAX_CLAIMS:
            yield f"{claim.test} claims {len(claim.ids)} requirements, more than {MAX_CLAIMS}"
    for capability in manifest.capabilities:
        for id_ in capability.requirements:
            if id_ not in by_id:
                yield f"capability {capability.name} names {id_}, which is not in the manifest"
            elif by_id[id_].deferred is not None:
                yield f"capability {capability.name} rests on {id_}, which is deferred"
