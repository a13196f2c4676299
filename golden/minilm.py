"""Sentences of many scripts through the real all-MiniLM-L6-v2 by sentence-transformers.

encoders/minilm.npz: `text` (UTF-8, one sentence a line, uint8), `ids` and `lengths` (the token ids
of all sentences one after the other), `embeddings` (float32 [200, 384]).
The model's directory is the first argument.
"""

import sys
from pathlib import Path

import numpy as np
import torch
from sentence_transformers import SentenceTransformer

HERE = Path(__file__).parent
ODD = [
    "", " ", "a", "42", "?!", "naïve café, coöperate; Zürich — “quoted”", "x" * 120,
    "http://example.org/a?b=c&d=%20", "👩‍👧 family 🏳️‍🌈 emoji 🎉🎉", "ﬁ ligature ½ ℃ Ⅷ ①",
    "ＦＵＬＬ ｗｉｄｔｈ", "tab\there  two  spaces", "İstanbul ǅ ß ẞ ﬀ", "e\u0301 vs \u00e9",
    "\u202eright to left\u202c", "zero\u200bwidth\u00adsoft", "naïve\u00a0nbsp", "1,234.56 + 7e-8 = ?",
    "don't can't it's rock'n'roll", "C++ & C# -> Rust::new(<T>)", "α β γ ∑ ∫ √ ≠ ≤",
    "ﷺ ۞ ﷽", "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𝕞𝕒𝕥𝕙", "ABC中文DEF日本語GHI한국어", "ภาษาไทยไม่มีช่องว่าง",
    "word " * 50,
]


def sentences():
    lines = (HERE / "languages.txt").read_text().splitlines()
    parts = [line[: len(line) // 3] for line in lines]
    ends = [line[2 * len(line) // 3 :] for line in lines]
    return (ODD + lines + parts + ends)[:200]


def main():
    torch.set_num_threads(1)
    model = SentenceTransformer(sys.argv[1], device="cpu")
    texts = [t.replace("\n", " ") for t in sentences()]
    assert len(texts) == 200
    # One at a time: padding changes the last bits of the reference.
    vectors = np.concatenate([model.encode([t]) for t in texts]).astype(np.float32)
    ids = [model.tokenizer(t, truncation=True, max_length=model.max_seq_length)["input_ids"]
           for t in texts]
    np.savez_compressed(
        HERE / "encoders" / "minilm.npz",
        text=np.frombuffer("\n".join(texts).encode(), dtype=np.uint8),
        ids=np.concatenate([np.array(i, dtype=np.int32) for i in ids]),
        lengths=np.array([len(i) for i in ids], dtype=np.int32),
        embeddings=vectors,
    )
    print(vectors.shape, max(map(len, ids)))


if __name__ == "__main__":
    main()
