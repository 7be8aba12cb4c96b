"""The page tree of a PDF, looked at before a reader that would follow it for ever."""

from __future__ import annotations

import re

from kb_engine.extract.failures import damaged

_OBJECT_OR_KIDS = re.compile(rb"(\d{1,10})\s+\d{1,5}\s+obj\b|/Kids\s*\[([^\]]*)\]")
_REFERENCE = re.compile(rb"(\d{1,10})\s+\d{1,5}\s+R\b")


def check_page_tree(data: bytes) -> None:
    """Raises ExtractionFailed "file_corrupt" where a node is its own ancestor.

    Only nodes that stand in the file uncompressed are seen; of the others a reader has `Limits.cpu_seconds`.
    """
    kids = _kids(data)
    open_nodes: set[int] = set()
    sound: set[int] = set()
    for root in kids:
        path = [(root, iter(kids[root]))]
        open_nodes.add(root)
        while path:
            node, left = path[-1]
            child = next((child for child in left if child in kids and child not in sound), None)
            if child is None:
                path.pop()
                open_nodes.discard(node)
                sound.add(node)
            elif child in open_nodes:
                raise damaged("PDF", f"object {child} of its page tree holds itself")
            else:
                open_nodes.add(child)
                path.append((child, iter(kids[child])))


def _kids(data: bytes) -> dict[int, list[int]]:
    """What the nodes of trees hold, by their numbers; of one that was changed its last version."""
    kids: dict[int, list[int]] = {}
    number = 0
    for found in _OBJECT_OR_KIDS.finditer(data):
        if found[1] is None:
            kids[number] = [int(reference) for reference in _REFERENCE.findall(found[2])]
        else:
            number = int(found[1])
            kids.pop(number, None)
    return kids
