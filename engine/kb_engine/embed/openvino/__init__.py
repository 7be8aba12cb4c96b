"""MiniLM on the OpenVINO runtime, instead of onnxruntime."""

from __future__ import annotations

from kb_engine.parts import Part

PART = Part(
    "openvino", embedders={"minilm-openvino": "kb_engine.embed.openvino.openvino_model:MiniLMOnOpenVino"}
)
