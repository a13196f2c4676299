"""Compares llama.cpp's logits on families/*.gguf with those of transformers in families/*.npz.

Shows that the files are what llama.cpp takes them for. Not part of `cargo xtask golden`: it needs
llama-cpp-python, which compiles C++. llama.cpp ignores the window in files of the llama
architecture, so for mistral only lengths up to the window are compared.
"""

import ctypes
import sys
from pathlib import Path

import llama_cpp
import numpy as np

FAMILIES = Path(__file__).parent.parent / "families"
LONGEST = {"mistral": 16}


@llama_cpp.llama_log_callback
def only_errors(level, text, _):
    if level == 4:
        sys.stderr.write(text.decode())


def logits_of(path, sequences):
    parameters = llama_cpp.llama_context_default_params()
    parameters.n_ctx, parameters.n_batch, parameters.n_ubatch = 512, 512, 512
    parameters.type_k = parameters.type_v = 0  # f32
    parameters.flash_attn_type = 0
    parameters.swa_full = False
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), llama_cpp.llama_model_default_params())
    assert model, path
    vocabulary = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
    results = []
    for ids in sequences:
        context = llama_cpp.llama_init_from_model(model, parameters)
        batch = llama_cpp.llama_batch_init(len(ids), 0, 1)
        batch.n_tokens = len(ids)
        for i, token in enumerate(ids):
            batch.token[i], batch.pos[i], batch.n_seq_id[i] = int(token), i, 1
            batch.seq_id[i][0], batch.logits[i] = 0, True
        assert llama_cpp.llama_decode(context, batch) == 0
        data = llama_cpp.llama_get_logits(context)
        flat = np.ctypeslib.as_array(ctypes.cast(data, ctypes.POINTER(ctypes.c_float)),
                                     (len(ids), vocabulary))
        results.append(flat.copy())
        llama_cpp.llama_batch_free(batch)
        llama_cpp.llama_free(context)
    llama_cpp.llama_model_free(model)
    return results


def main():
    llama_cpp.llama_log_set(only_errors, None)
    worst = 0.0
    for path in sorted(FAMILIES.glob("*.gguf")):
        reference = np.load(path.with_suffix(".npz"))
        lengths = sorted(int(key.split(".")[0]) for key in reference if key.endswith("input_ids"))
        lengths = [n for n in lengths if n <= LONGEST.get(path.stem, n)]
        found = logits_of(path, [reference[f"{n}.input_ids"][0] for n in lengths])
        for length, logits in zip(lengths, found):
            expected = reference[f"{length}.logits"][0]
            error = np.abs(logits - expected).max() / np.abs(expected).max()
            top = (logits.argmax(1) == expected.argmax(1)).mean()
            print(f"{path.stem:14} {length:4} relative error {error:.2e}, same top-1 {top:.3f}")
            worst = max(worst, error)
    sys.exit(int(worst > 1e-3))


if __name__ == "__main__":
    main()
