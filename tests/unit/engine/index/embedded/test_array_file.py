"""An array file is complete or refused."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from kb_engine.index.embedded.array_file import ArrayFile, UnreadableIndexFile, new_array_file

DTYPES = {"small": "|u1", "large": "<i8", "none": "<f4"}


def written(path: Path, *, dtypes: Mapping[str, str] = DTYPES) -> Path:
    with new_array_file(path, "test", 1, {"by": "a test"}, dtypes, {"large": 4}) as writer:
        writer.append("large", np.array([1, 2]))
        for name in dtypes.keys() - {"large"}:
            writer.add(name, np.arange(3 if name == "small" else 0))
        writer.append("large", np.array([3, 4], np.uint8))
    return path


def values(path: Path) -> dict[str, list[int]]:
    file = ArrayFile(path, "test", 1, DTYPES)
    file.check()
    return {name: array.tolist() for name, array in file.arrays.items()}


def test_arrays_and_attributes_are_read_as_written(tmp_path: Path) -> None:
    file = ArrayFile(written(tmp_path / "file"), "test", 1, DTYPES)
    assert file.attributes == {"by": "a test"}
    assert {name: array.tolist() for name, array in file.arrays.items()} == {
        "small": [0, 1, 2],
        "large": [1, 2, 3, 4],
        "none": [],
    }
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_arrays_are_aligned_and_cannot_be_written(tmp_path: Path) -> None:
    arrays = ArrayFile(written(tmp_path / "file"), "test", 1, DTYPES).arrays
    assert all(array.ctypes.data % 64 == 0 for name, array in arrays.items() if name != "none")
    with pytest.raises(ValueError, match="read-only"):
        arrays["small"][0] = 9


def test_arrays_outlive_their_file(tmp_path: Path) -> None:
    array = ArrayFile(written(tmp_path / "file"), "test", 1, DTYPES).arrays["large"]
    (tmp_path / "file").unlink()
    assert array.tolist() == [1, 2, 3, 4]


def test_a_file_that_was_cut_anywhere_is_refused(tmp_path: Path) -> None:
    whole = written(tmp_path / "file").read_bytes()
    for length in range(len(whole)):
        (tmp_path / "file").write_bytes(whole[:length])
        with pytest.raises(UnreadableIndexFile, match=r"index file .*/file cannot be used"):
            values(tmp_path / "file")


def test_a_damaged_byte_is_noticed_or_lies_between_the_sections(tmp_path: Path) -> None:
    whole = written(tmp_path / "file").read_bytes()
    expected = values(tmp_path / "file")
    refused = 0
    for place in range(len(whole)):
        (tmp_path / "file").write_bytes(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
        try:
            assert values(tmp_path / "file") == expected
        except UnreadableIndexFile:
            refused += 1
    assert refused > len(whole) / 2


@pytest.mark.parametrize(
    ("kind", "version", "dtypes", "reason"),
    [
        ("other", 1, DTYPES, "it holds test 1, expected other 1"),
        ("test", 2, DTYPES, "it holds test 1, expected test 2"),
        ("test", 1, DTYPES | {"more": "|u1"}, "its sections are not those of test 1"),
        ("test", 1, DTYPES | {"small": "|i1"}, "its sections are not those of test 1"),
    ],
)
def test_a_file_of_another_kind_version_or_type_is_refused(
    tmp_path: Path, kind: str, version: int, dtypes: dict[str, str], reason: str
) -> None:
    with pytest.raises(UnreadableIndexFile, match=reason):
        ArrayFile(written(tmp_path / "file"), kind, version, dtypes)


@pytest.mark.parametrize("content", [b"", b"SQLite format 3\0" * 100])
def test_a_foreign_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(UnreadableIndexFile):
        ArrayFile(tmp_path / "file", "test", 1, DTYPES)


@pytest.mark.parametrize("count", [1, 5])
def test_a_section_of_another_length_is_an_error_and_changes_nothing(tmp_path: Path, count: int) -> None:
    before = written(tmp_path / "file").read_bytes()
    dtypes = {"large": "<i8"}
    with (
        pytest.raises(ValueError, match="section large"),
        new_array_file(tmp_path / "file", "test", 1, {}, dtypes, {"large": 4}) as writer,
    ):
        writer.append("large", np.zeros(count))
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [before]
