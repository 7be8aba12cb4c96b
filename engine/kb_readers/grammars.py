"""The packages with tree-sitter grammars by language; this module imports none of them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

GRAMMARS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "py": ("tree_sitter_python", "language"),
        "js": ("tree_sitter_javascript", "language"),
        "ts": ("tree_sitter_typescript", "language_typescript"),
        "tsx": ("tree_sitter_typescript", "language_tsx"),
        "go": ("tree_sitter_go", "language"),
        "rs": ("tree_sitter_rust", "language"),
        "java": ("tree_sitter_java", "language"),
        "kt": ("tree_sitter_kotlin", "language"),
        "scala": ("tree_sitter_scala", "language"),
        "swift": ("tree_sitter_swift", "language"),
        "c": ("tree_sitter_c", "language"),
        "cpp": ("tree_sitter_cpp", "language"),
        "cs": ("tree_sitter_c_sharp", "language"),
        "rb": ("tree_sitter_ruby", "language"),
        "php": ("tree_sitter_php", "language_php"),
        "sh": ("tree_sitter_bash", "language"),
        "lua": ("tree_sitter_lua", "language"),
    }
)
"""By format name: the package and its function that returns the grammar."""
