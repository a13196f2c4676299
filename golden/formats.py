"""Small GGUF, safetensors, npz and PyTorch files made by other people's writers, for the tests of `crates/formats`.

Run: cargo xtask golden formats. Writes golden/formats/*.
"""

import pathlib

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Q
from gguf import GGUFValueType as V

OUT = pathlib.Path(__file__).parent / "formats"


def ramp(*shape, dtype=np.float32):
    n = int(np.prod(shape))
    return (np.arange(n) % 251 - 100).astype(dtype).reshape(shape)


def every_type(path):
    """Every scalar type and every array type, then plain and quantised tensors."""
    w = gguf.GGUFWriter(path, "golden")
    w.add_custom_alignment(64)
    w.add_uint8("golden.u8", 255)
    w.add_int8("golden.i8", -128)
    w.add_uint16("golden.u16", 65535)
    w.add_int16("golden.i16", -32768)
    w.add_uint32("golden.u32", 2**32 - 1)
    w.add_int32("golden.i32", -(2**31))
    w.add_uint64("golden.u64", 2**64 - 1)
    w.add_int64("golden.i64", -(2**63))
    w.add_float32("golden.f32", 0.1)
    w.add_float64("golden.f64", 0.1)
    w.add_bool("golden.true", True)
    w.add_bool("golden.false", False)
    w.add_string("golden.string", "naïve 🦙\n")
    w.add_key_value("golden.empty_string", "", V.STRING)
    for name, sub, values in [
        ("u8", V.UINT8, [0, 1, 255]),
        ("i8", V.INT8, [-128, 127]),
        ("u16", V.UINT16, [0, 65535]),
        ("i16", V.INT16, [-32768, 1]),
        ("u32", V.UINT32, [7, 2**32 - 1]),
        ("i32", V.INT32, [-1, 2**31 - 1]),
        ("u64", V.UINT64, [2**64 - 1]),
        ("i64", V.INT64, [-(2**63), 5]),
        ("f32", V.FLOAT32, [0.5, -1.25]),
        ("f64", V.FLOAT64, [1e300]),
        ("bool", V.BOOL, [True, False, True]),
        ("string", V.STRING, ["<s>", "▁the", "🦙", "x"]),
    ]:
        w.add_key_value(f"golden.array.{name}", values, V.ARRAY, sub)
    w.add_key_value("golden.array.nested", [[1, 2], [3]], V.ARRAY, V.ARRAY)

    for dtype in [np.float32, np.float16, np.float64, np.int8, np.int16, np.int32, np.int64]:
        w.add_tensor(f"plain.{np.dtype(dtype).name}", ramp(3, 5, dtype=dtype))
    w.add_tensor("axes.4", ramp(2, 3, 1, 5))
    w.add_tensor("axes.1", ramp(7))
    for q in [Q.BF16, Q.Q4_0, Q.Q8_0, Q.TQ2_0]:
        w.add_tensor(f"quant.{q.name.lower()}", gguf.quants.quantize(ramp(2, 256), q), raw_dtype=q)
    finish(w)


def split(path):
    """A model in three parts."""
    w = gguf.GGUFWriter(path, "golden", split_max_tensors=2)
    w.add_uint32("golden.block_count", 5)
    for i in range(5):
        w.add_tensor(f"blk.{i}.weight", ramp(2, 4) + i)
    finish(w)


def finish(w):
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def safetensors_file(path):
    from safetensors.numpy import save_file

    save_file({"a": ramp(2, 3), "b": ramp(4, dtype=np.int64), "c": ramp(3, dtype=np.float16),
               "scalar": np.array(1.5, np.float32), "none": ramp(0, 3)},
              path, metadata={"format": "np"})


def npz_files():
    """Every type, both orders, both byte orders, stored and deflated."""
    r = (np.arange(12) - 5).reshape(3, 4)
    f = (r / 4).astype(np.float32)
    arrays = {
        "f32": f, "f64": r / 4, "f16": f.astype(np.float16),
        "f32_fortran": np.asfortranarray(f), "f32_big": f.astype(">f4"),
        "i64": r.astype(np.int64), "i64_fortran_big": np.asfortranarray(r.astype(">i8")),
        "bool": (np.arange(12) % 2 == 1).reshape(3, 4),
        "scalar": np.array(2.5, np.float32), "empty": np.zeros((0, 3), np.float32),
        "weights::bfloat16": np.array([0x3F80, 0xC000], np.uint16),
        "onnx::MatMul_12": np.array([1], np.int32),
    }
    for name in ["i8", "i16", "i32"]:
        arrays[name] = r.astype(np.dtype("int" + name[1:]))
    for name in ["u8", "u16", "u32", "u64"]:
        arrays[name] = np.arange(12).reshape(3, 4).astype(np.dtype("uint" + name[1:]))
    np.savez(OUT / "plain.npz", **arrays)
    np.savez_compressed(OUT / "packed.npz", **arrays)


def checkpoints():
    """PyTorch checkpoints in both forms, and one that calls what no tensor needs."""
    import subprocess

    import torch

    plain = (torch.arange(15) / 4 - 3).reshape(3, 5)
    state = {
        "plain": plain, "half": plain.bfloat16(), "turned": plain.T, "part": plain[1:, 1:4],
        "scalar": torch.tensor(2.5, dtype=torch.float64), "ids": torch.tensor([7, -1]),
        "empty": torch.zeros(0, 4), "shared": torch.nn.Parameter(plain),
    }
    torch.save(state, OUT / "checkpoint.bin")
    torch.save({"epoch": 3, "state_dict": state}, OUT / "checkpoint-legacy.bin",
               _use_new_zipfile_serialization=False)

    class Caller:
        def __reduce__(self):
            return subprocess.getoutput, ("true",)

    torch.save({"weight": plain, "extra": Caller()}, OUT / "checkpoint-calls.bin")


if __name__ == "__main__":
    OUT.mkdir(exist_ok=True)
    every_type(OUT / "every_type.gguf")
    split(OUT / "split.gguf")
    safetensors_file(OUT / "plain.safetensors")
    npz_files()
    checkpoints()
