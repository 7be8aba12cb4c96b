"""The requirements and the tests of this project agree in both directions; each complaint is tested."""

from __future__ import annotations

from pathlib import Path

import pytest

from kb_verify.requirements import Capability, Manifest, Requirement, RequirementsError, load
from tests.requirements.claims import SUITE, Claim, check, collect_claims

TESTS = Path(__file__).parents[1]


def test_every_requirement_has_a_test_and_every_test_a_known_requirement() -> None:
    complaints = list(check(load(), collect_claims(TESTS, SUITE)))
    assert not complaints, "\n".join(complaints)


@pytest.mark.requirement("E36")
def test_the_capabilities_of_this_version_are_named_and_proven() -> None:
    """Each capability is documented with its requirements, for which `check` demands tests."""
    named = {capability.name: capability for capability in load().capabilities}
    assert named.keys() == {"mcp-server", "note-mutation", "agent-search-patterns", "engine-api", "client"}
    assert all(capability.text and capability.requirements for capability in named.values())


K1 = Requirement(id="K1", text="It works")
DEFERRED = Requirement(id="K2", text="It flies", deferred="no wings yet")
CONTEXT = Requirement(id="K3", text="It was written", deferred="history", context=True)


def claims_in(tmp_path: Path, source: str) -> list[Claim]:
    (tmp_path / "test_sample.py").write_text(source)
    return collect_claims(tmp_path)


SIX = tuple(Requirement(id=f"K{number}", text="text") for number in range(1, 7))
FLIGHT = Capability(name="flight", text="It flies", requirements=("K2", "K99"))


@pytest.mark.parametrize(
    ("manifest", "claimed", "complaints"),
    [
        (Manifest((K1, DEFERRED, CONTEXT)), [("K1",)], []),
        (Manifest((K1,)), [], ["K1 has no test: It works"]),
        (Manifest((K1,)), [("K1", "K99")], ["test 0 names K99, which is not in the manifest"]),
        (Manifest((Requirement(id="K2", text="t", deferred="  "),)), [], ["K2 is deferred without a reason"]),
        (Manifest((Requirement(id="K3", text="t", context=True),)), [], ["K3 is deferred without a reason"]),
        (Manifest((DEFERRED,)), [("K2",)], ["K2 is deferred and has a test: the deferral is stale"]),
        (
            Manifest(SIX),
            [tuple(entry.id for entry in SIX[:5]), tuple(entry.id for entry in SIX)],
            ["test 1 claims 6 requirements, more than 5"],
        ),
        (Manifest((K1, K1)), [("K1",)], ["K1 stands 2 times in the manifest"]),
        (
            Manifest((DEFERRED,), (FLIGHT,)),
            [],
            [
                "capability flight rests on K2, which is deferred",
                "capability flight names K99, which is not in the manifest",
            ],
        ),
    ],
)
def test_every_disagreement_is_a_complaint(
    manifest: Manifest, claimed: list[tuple[str, ...]], complaints: list[str]
) -> None:
    claims = [Claim(f"test {number}", ids) for number, ids in enumerate(claimed)]
    assert list(check(manifest, claims)) == complaints


def test_marks_on_module_class_and_function_add_up(tmp_path: Path) -> None:
    source = """
import pytest
pytestmark = [pytest.mark.requirement("K1")]

class TestThings:
    @pytest.mark.requirement("K2", "K1")
    async def test_one(self): ...

@pytest.mark.requirement("K3")
@pytest.mark.requirement("K4")
def test_two(): ...

def test_three(): ...
def helper(): ...
"""
    assert claims_in(tmp_path, source) == [
        Claim("test_sample.py::TestThings::test_one", ("K1", "K2")),
        Claim("test_sample.py::test_two", ("K1", "K3", "K4")),
        Claim("test_sample.py::test_three", ("K1",)),
    ]


def test_a_mark_inside_a_parameter_counts(tmp_path: Path) -> None:
    source = """
import pytest
@pytest.mark.parametrize("x", [pytest.param(1, marks=pytest.mark.requirement("K7")), 2])
def test_one(x): ...
"""
    assert claims_in(tmp_path, source) == [Claim("test_sample.py::test_one", ("K7",))]


def test_several_roots_are_read_and_other_projects_are_not(tmp_path: Path) -> None:
    source = 'import pytest\n@pytest.mark.requirement("{}")\ndef test_one(): ...\n'
    for folder, id_ in (("b", "K1"), ("a", "K2"), ("b/node_modules/x", "K3")):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "test_sample.py").write_text(source.format(id_))
    claims = collect_claims(tmp_path / "b", tmp_path / "a")
    assert [claim.ids for claim in claims] == [("K1",), ("K2",)]


def test_a_test_without_marks_claims_nothing(tmp_path: Path) -> None:
    assert claims_in(tmp_path, "def test_plain(): ...") == []


@pytest.mark.parametrize(
    "source", ["import pytest\n@pytest.mark.requirement(IDS)\ndef test_a(): ...", "def test_requirement(:"]
)
def test_an_unreadable_requirement_mark_is_an_error_that_names_the_file(tmp_path: Path, source: str) -> None:
    """A computed mark, or a file that is not Python, is never ignored."""
    with pytest.raises(RequirementsError, match=r"test_sample\.py"):
        claims_in(tmp_path, source)


def test_a_group_hands_its_reason_down(tmp_path: Path) -> None:
    path = tmp_path / "requirements.toml"
    path.write_text(
        '[[group]]\nprefix = "N"\ntitle = "t"\ndeferred = "later"\n'
        'requirements = [{ id = "N1", text = "a" }, { id = "N2", text = "b", deferred = "never" }]\n'
    )
    assert [entry.deferred for entry in load(path).requirements] == ["later", "never"]


@pytest.mark.parametrize("content", ["[[group]", '[[group]]\nprefix = "N"\n', "[[group]]\ncolour = 1\n"])
def test_a_manifest_that_does_not_fit_is_an_error_that_names_it(tmp_path: Path, content: str) -> None:
    path = tmp_path / "requirements.toml"
    path.write_text(content)
    with pytest.raises(RequirementsError, match=r"requirements\.toml"):
        load(path)


def test_the_manifest_numbers_each_group_without_gaps() -> None:
    entries = load().requirements
    counts = {"K": 60, "E": 36, "F": 50, "N": 90, "R": 86}
    assert [entry.id for entry in entries] == [
        f"{prefix}{number}" for prefix, count in counts.items() for number in range(1, count + 1)
    ]
    assert all(entry.text and "\n" not in entry.text for entry in entries)
