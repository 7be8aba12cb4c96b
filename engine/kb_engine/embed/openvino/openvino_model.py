"""all-MiniLM-L6-v2 on OpenVINO, an extra: about half of the processor time of onnxruntime.

Both run the same file of int8 weights, and a database may mix their vectors. So both have the same name:
switching between them needs no `kb reindex` (docs/embedders.md has the measurements). The runtime is a
setting and does not depend on the installed packages, so that vectors change only on request.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kb_engine.cores import CORES
from kb_engine.embed.minilm import MiniLM
from kb_engine.embed.onnx_model import missing_package
from kb_engine.embed.protocol import EmbedderUnavailable

if TYPE_CHECKING:
    from types import ModuleType

_STEP = 16
"""Texts are padded to a multiple of this many tokens: the runtime compiles 2.5 MB of code for each length."""
_TELEMETRY = "openvino_telemetry"
_SETTINGS = {
    # One thread, the caller's, whose priority applies; more streams would start threads of their own.
    "NUM_STREAMS": 1,
    "INFERENCE_NUM_THREADS": 1,
    "ENABLE_CPU_PINNING": False,
}


class MiniLMOnOpenVino(MiniLM):
    """MiniLM on the OpenVINO runtime."""

    def open_session(self, model: bytes) -> OpenVinoSession:
        return OpenVinoSession(model, at_once=self.queries_at_once + CORES)


class OpenVinoSession:
    """A model on OpenVINO.

    A compiled model runs one text at a time, so there is one per concurrent run; they share the weights.
    `at_once` of them are compiled now, more on demand.
    Raises EmbedderUnavailable: the package is missing, or this is not a model.
    """

    def __init__(self, model: bytes, *, at_once: int) -> None:
        openvino = _runtime()
        self._core = openvino.Core()
        try:
            self._model = self._core.read_model(model)
            self._idle = [self._compiled() for _ in range(at_once)]
        except Exception as error:  # the runtime raises RuntimeError for any failure
            raise EmbedderUnavailable(f"OpenVINO cannot load the model: {error}") from error
        self.inputs: Sequence[str] = [each.any_name for each in self._model.inputs]
        self.outputs: Mapping[str, int] = {
            each.any_name: len(each.partial_shape) for each in self._model.outputs
        }

    def run(self, output: str, inputs: Mapping[str, NDArray[np.int64]]) -> NDArray[np.float32]:
        (length,) = {values.shape[1] for values in inputs.values()}
        filling = ((0, 0), (0, -length % _STEP))  # zeros, excluded by the attention mask
        try:
            request = self._idle.pop()
        except IndexError:
            request = self._compiled()
        try:
            found = request.infer({name: np.pad(values, filling) for name, values in inputs.items()})
            vectors: NDArray[np.float32] = found[output]
        finally:
            self._idle.append(request)
        return vectors[:, :length] if vectors.ndim == 3 else vectors

    def _compiled(self) -> Any:
        return self._core.compile_model(self._model, "CPU", _SETTINGS).create_infer_request()


def _runtime() -> ModuleType:
    """Import the package with its telemetry disabled.

    Its conversion tools, which are imported with it, write an id into the user's home and send it, unless the
    telemetry package cannot be imported.
    """
    sys.modules.setdefault(_TELEMETRY, None)  # type: ignore[arg-type]  # makes the import fail
    try:
        import openvino
    except ImportError as error:
        raise missing_package("openvino", extra="openvino") from error
    runtime: ModuleType = openvino
    return runtime
