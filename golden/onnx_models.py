"""Outputs of real ONNX models by ONNX Runtime, for inputs that a seed makes.

Writes onnx_models/NAME.npz: inputs as `in.NAME`, outputs as `out.NAME`. The models lie in the models
folder (`cargo xtask models --all`).
"""

import os
import pathlib

import numpy as np
import onnxruntime

HERE = pathlib.Path(__file__).parent
DATA = os.environ.get("XDG_DATA_HOME") or pathlib.Path.home() / ".local/share"
MODELS = pathlib.Path(os.environ.get("SOMA_MODELS") or pathlib.Path(DATA) / "soma/models")


def session(path):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(MODELS / path, options, ["CPUExecutionProvider"])


def save(name, path, inputs, keep=lambda name, value: value):
    run = session(path)
    values = run.run(None, inputs)
    arrays = {f"in.{k}": v for k, v in inputs.items()}
    for output, value in zip(run.get_outputs(), values):
        arrays[f"out.{output.name}"] = keep(output.name, value)
    target = HERE / "onnx_models"
    target.mkdir(exist_ok=True)
    np.savez_compressed(target / f"{name}.npz", **arrays)


def speech(n, rate=16000):
    """Something with a pitch that moves, and noise."""
    t = np.arange(n) / rate
    rng = np.random.default_rng(7)
    wave = sum(np.sin(2 * np.pi * 140 * k * t + 3 * np.sin(5 * t)) / k for k in range(1, 9))
    return (0.1 * wave + 0.01 * rng.standard_normal(n)).astype(np.float32)


def silero():
    rng = np.random.default_rng(1)
    state = (0.1 * rng.standard_normal((2, 1, 128))).astype(np.float32)
    chunk = speech(576).reshape(1, 576)
    for name in ["silero_vad", "silero_vad_16k_op15", "silero_vad_op18_ifless"]:
        inputs = {"input": chunk, "state": state, "sr": np.array(16000, np.int64)}
        save(name, f"silero-vad/{name}.onnx", inputs)
    chunk8 = speech(288, 8000).reshape(1, 288)
    inputs = {"input": chunk8, "state": state, "sr": np.array(8000, np.int64)}
    save("silero_vad_8k", "silero-vad/silero_vad.onnx", inputs)
    for name in ["silero_vad_half", "silero_vad_openvino_16k"]:
        save(name, f"silero-vad/{name}.onnx", {"input": chunk, "state": state})
    h, c = ((0.1 * rng.standard_normal((1, 1, 128))).astype(np.float32) for _ in range(2))
    chunks = speech(4 * 576).reshape(4, 576)
    save("silero_vad_16k_sequence", "silero-vad/silero_vad_16k_sequence.onnx",
         {"input": chunks, "h": h, "c": c})


def main():
    silero()
    rng = np.random.default_rng(2)
    ids = rng.integers(0, 257, (2, 2048)).astype(np.int32)
    save("magika", "magika-standard_v3_3.onnx", {"bytes": ids})
    image = rng.random((1, 3, 64, 96)).astype(np.float32)
    save("320n", "320n.onnx", {"images": image})
    # Without noise, so that nothing is random.
    phonemes = np.array([[1, 0, 20, 0, 59, 0, 24, 0, 120, 0, 27, 0, 100, 0, 2]], np.int64)
    save("piper", "en_US-joe-medium/en_US-joe-medium.onnx", {
        "input": phonemes,
        "input_lengths": np.array([phonemes.shape[1]], np.int64),
        "scales": np.array([0.0, 1.0, 0.0], np.float32),
    })


if __name__ == "__main__":
    main()
