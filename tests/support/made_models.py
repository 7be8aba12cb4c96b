"""Tiny models in ONNX in the layout of a hub's repository, and a hub on loopback that serves one.

The models are written as bytes of Protocol Buffers, because the package `onnx` is heavy. A token's vector is
a row of a table. A sentence model outputs the vectors of all tokens; a cross-encoder their mean, one number.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from aiohttp import web
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from tests.support.serving import serving_app

_FLOAT, _INT64 = 1, 7
_VARINT, _BYTES = 0, 2
REVISION = "c0ffee" * 6 + "c0ff"


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def _field(number: int, value: int | str | bytes) -> bytes:
    if isinstance(value, int):
        return _varint(number << 3 | _VARINT) + _varint(value)
    raw = value.encode() if isinstance(value, str) else value
    return _varint(number << 3 | _BYTES) + _varint(len(raw)) + raw


def _value(name: str, kind: int, shape: Sequence[str]) -> bytes:
    dimensions = b"".join(_field(1, _field(2, axis)) for axis in shape)
    return _field(1, name) + _field(2, _field(1, _field(1, kind) + _field(2, dimensions)))


def _node(operator: str, inputs: Sequence[str], output: str, attributes: bytes = b"") -> bytes:
    return b"".join(_field(1, each) for each in inputs) + _field(2, output) + _field(4, operator) + attributes


def _model(table: Sequence[Sequence[float]], *, scores: bool) -> bytes:
    numbers = [number for row in table for number in row]
    weights = (
        b"".join(_field(1, size) for size in (len(table), len(table[0])))
        + _field(2, _FLOAT)
        + _field(8, "table")
        + _field(9, struct.pack(f"<{len(numbers)}f", *numbers))
    )
    nodes = [_node("Gather", ["table", "input_ids"], "last_hidden_state")]
    output = _value("last_hidden_state", _FLOAT, ["batch", "tokens", "dimensions"])
    if scores:
        axes = _field(5, _field(1, "axes") + _field(8, 1) + _field(20, _INT64))
        keep = _field(5, _field(1, "keepdims") + _field(3, 0) + _field(20, 2))
        nodes.append(_node("ReduceMean", ["last_hidden_state"], "logits", axes + keep))
        output = _value("logits", _FLOAT, ["batch", "dimensions"])
    graph = (
        b"".join(_field(1, node) for node in nodes)
        + _field(2, "made")
        + _field(5, weights)
        + _field(11, _value("input_ids", _INT64, ["batch", "tokens"]))
        + _field(12, output)
    )
    return _field(1, 7) + _field(7, graph) + _field(8, _field(1, "") + _field(2, 11))


def write_model(
    folder: Path, file: str, words: Mapping[str, Sequence[float]], *, scores: bool = False, window: int = 32
) -> None:
    """Write a model that knows `words`; any other word has the vector of "[UNK]", which `words` must have."""
    weights = folder / file
    weights.parent.mkdir(parents=True, exist_ok=True)
    table = {"[PAD]": [0.0] * len(words["[UNK]"]), **words}
    weights.write_bytes(_model(list(table.values()), scores=scores))
    tokenizer = Tokenizer(WordLevel({word: place for place, word in enumerate(table)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"model_max_length": window, "pad_token": "[PAD]"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "config.json").write_text(json.dumps({"pad_token_id": 0}))


@asynccontextmanager
async def hub(repository: str, folder: Path, requests: list[str]) -> AsyncIterator[str]:
    """Serve the files of `folder` as a hub does; yield its URL. `requests` gets each path and range."""

    async def metadata(request: web.Request) -> web.Response:
        requests.append(request.path)
        siblings = []
        for path in filter(Path.is_file, sorted(folder.rglob("*"))):
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            size = path.stat().st_size
            lfs = {"lfs": {"sha256": digest, "size": size, "pointerSize": 134}}
            sibling = {"rfilename": str(path.relative_to(folder)), "size": size}
            siblings.append(sibling | (lfs if path.suffix == ".onnx" else {}))
        return web.json_response({"id": repository, "sha": REVISION, "siblings": siblings})

    async def file(request: web.Request) -> web.StreamResponse:
        name = request.match_info["file"]
        requests.append(f"{name} {request.headers.get('Range', '')}".strip())
        path = folder / name
        return web.FileResponse(path)

    app = web.Application()
    app.router.add_get(f"/api/models/{repository}/revision/{{revision}}", metadata)
    app.router.add_get(f"/{repository}/resolve/{{revision}}/{{file:.*}}", file)
    async with serving_app(app) as url:
        yield url
