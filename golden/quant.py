"""Block formats: expected values of decoding and encoding, and the packed IQ codebooks.

The reference is the `gguf` package, and `torch` for the 8-bit floats. Run with the pinned versions
of `requirements.txt`:

    python golden/quant.py

writes
  golden/quant/decode.bin  explicit blocks and what they decode to
  golden/quant/crc.txt     dtype and the CRC-32 of decoding 512 generated blocks
  golden/quant/encode.bin  values and the blocks they encode to
  crates/tensor/src/quant/grids.bin

A `.bin` of this folder is a sequence of records: name, input and output, each a little-endian u32
length and as many bytes. Floats are little-endian f32; every NaN is 0x7fc00000.
"""

import struct
import zlib
from pathlib import Path

import numpy as np
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants

HERE = Path(__file__).parent
OUT = HERE / "quant"
GRIDS = HERE.parent / "crates" / "tensor" / "src" / "quant" / "grids.bin"

DECODED = """BF16 F16 Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K IQ1_S IQ1_M IQ2_XXS IQ2_XS
IQ2_S IQ3_XXS IQ3_S IQ4_NL IQ4_XS TQ1_0 TQ2_0 MXFP4 NVFP4""".split()
ENCODED = "F16 BF16 Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 TQ2_0".split()

# Byte offsets of the f16 scales in a block. IQ1_M scatters its scale; MXFP4 and NVFP4 have others.
SCALES = {
    "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0],
    "Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208],
    "IQ1_S": [0], "IQ2_XXS": [0], "IQ2_XS": [0], "IQ2_S": [0], "IQ3_XXS": [0], "IQ3_S": [0],
    "IQ4_NL": [0], "IQ4_XS": [0], "TQ1_0": [52], "TQ2_0": [64],
}
# Zero, smallest and largest subnormal, one, largest, negative, negative zero, an ordinary scale.
EDGES = [0x0000, 0x0001, 0x03FF, 0x3C00, 0x7BFF, 0xBC00, 0x8000, 0x1E21]


def splitmix(seed: int, n: int) -> np.ndarray:
    """`n` words of the SplitMix64 generator, which the tests repeat."""
    z = np.uint64(seed) + np.arange(1, n + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def random_bytes(seed: int, n: int) -> np.ndarray:
    return splitmix(seed, -(-n // 8)).astype("<u8").view(np.uint8)[:n]


def float_bytes(x: np.ndarray) -> bytes:
    bits = x.astype("<f4").reshape(-1).view("<u4").copy()
    bits[(bits & 0x7FFFFFFF) > 0x7F800000] = 0x7FC00000
    return bits.tobytes()


def dequantize(name: str, blocks: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        return quants.dequantize(blocks, GGMLQuantizationType[name])


def record(*parts: bytes) -> bytes:
    return b"".join(struct.pack("<I", len(p)) + p for p in parts)


def edge_blocks(name: str, seed: int) -> np.ndarray:
    elems, size = GGML_QUANT_SIZES[GGMLQuantizationType[name]]
    if elems == 1:
        return random_bytes(seed, 64 * size).reshape(1, -1)
    blocks = random_bytes(seed, len(EDGES) * size).reshape(len(EDGES), size).copy()
    for i, edge in enumerate(EDGES):
        for at in SCALES.get(name, []):
            blocks[i, at : at + 2] = np.array([edge], dtype="<u2").view(np.uint8)
        if name == "IQ1_M":
            for k in range(4):
                blocks[i, 49 + 2 * k] = (blocks[i, 49 + 2 * k] & 15) | (edge >> (4 * k) & 15) << 4
        if name == "MXFP4":
            blocks[i, 0] = [0, 1, 2, 127, 254, 255, 120, 100][i]
        if name == "NVFP4":
            blocks[i, :4] = [[0, 1, 7, 8], [0x7E, 0x7F, 0x80, 0xFF], [56, 57, 58, 59]][i % 3]
    return blocks


def values_for(name: str, elems: int) -> np.ndarray:
    """Normal rows of several sizes, a zero row, a spike, a constant, and exact halves."""
    n = max(elems, 32)
    rng = np.random.default_rng(7)
    rows = [rng.standard_normal(n) * size for size in (1, 0.02, 300, 1e-3, 1e-6)]
    spike = np.zeros(n)
    spike[n // 3] = -3.5
    rows += [np.zeros(n), spike, np.full(n, 0.75), np.arange(n) / 2.0, rng.laplace(size=n)]
    return np.stack(rows).astype(np.float32)


def main() -> None:
    OUT.mkdir(exist_ok=True)
    decode, crcs = [], []
    for i, name in enumerate(DECODED):
        blocks = edge_blocks(name, i)
        decode.append(record(name.encode(), blocks.tobytes(), float_bytes(dequantize(name, blocks))))
        _, size = GGML_QUANT_SIZES[GGMLQuantizationType[name]]
        generated = random_bytes(1000 + i, 512 * size).reshape(512, size)
        crc = zlib.crc32(float_bytes(dequantize(name, generated)))
        crcs.append(f"{name} {1000 + i} {crc:08x}\n")
    every = np.arange(256, dtype=np.uint8)
    for name, dtype in [("F8E4M3", torch.float8_e4m3fn), ("F8E5M2", torch.float8_e5m2)]:
        values = torch.from_numpy(every.copy()).view(dtype).float().numpy()
        decode.append(record(name.encode(), every.tobytes(), float_bytes(values)))
    (OUT / "decode.bin").write_bytes(b"".join(decode))
    (OUT / "crc.txt").write_text("".join(crcs))

    encode = []
    for name in ENCODED:
        qtype = GGMLQuantizationType[name]
        values = values_for(name, GGML_QUANT_SIZES[qtype][0])
        with np.errstate(all="ignore"):
            blocks = quants.quantize(values, qtype)
        encode.append(record(name.encode(), values.tobytes(), blocks.tobytes()))
    (OUT / "encode.bin").write_bytes(b"".join(encode))

    grids = "IQ1_S IQ2_XXS IQ2_XS IQ2_S IQ3_XXS IQ3_S".split()
    GRIDS.write_bytes(b"".join(bytes.fromhex(getattr(quants, g).grid_hex.decode()) for g in grids))


if __name__ == "__main__":
    main()
