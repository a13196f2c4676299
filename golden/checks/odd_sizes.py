"""Random llama models of odd sizes in every quantised type, through `forward`.

    odd_sizes.py SOMA_RUNTIME [TYPE...]

Hidden sizes 576, 896 and 960, feed-forward sizes that are no multiples of 256 and one that is.
llama.cpp's quantiser makes the files, by its own fallbacks where rows are no multiples of a type's
block. Each is run with 1, 2, 3 and 5 threads, with every type of the cache, and on prefixes of 1 to
300 tokens alone and in batches of 3, 8 and 9: every logit must have the same bits whatever shares
the pass. Logits must be near those of the same file computed in `f32` by the interpreter. Prints a
line a file that fails, and a count. Needs the packages gguf, llama-cpp-python and numpy. Run by hand;
nothing is stored.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import gguf
import llama_cpp
import numpy as np

TYPES = {
    "q4_0": 2, "q4_1": 3, "q5_0": 8, "q5_1": 9, "q8_0": 7, "q2_k": 10, "q3_k": 12, "q4_k": 15,
    "q5_k": 17, "q6_k": 18, "iq4_nl": 25, "iq4_xs": 30, "iq3_s": 26, "iq3_xxs": 23, "iq2_s": 28,
    "tq1_0": 36, "tq2_0": 37, "mxfp4": 38, "bf16": 32, "f16": 1,
}
# Hidden size, query heads, key heads, feed-forward size.
SIZES = [(576, 9, 3, 1504), (896, 14, 2, 4864), (960, 15, 5, 2528), (512, 4, 1, 1280)]
CACHES = ["f16", "bf16", "f32", "q8_0"]
# Activations have 8 bits, and the interpreter's do not.
NEAR = 0.06


@llama_cpp.llama_log_callback
def silent(_level, _text, _data):
    pass


def write(path, size, random):
    """A model of two layers whose vocabulary is that of a golden model."""
    hidden, heads, groups, feed = size
    golden = gguf.GGUFReader(Path(__file__).parent.parent / "families/llama3.gguf")
    writer = gguf.GGUFWriter(path, "llama")
    for key, field in golden.fields.items():
        if key.startswith("tokenizer."):
            kind = field.types[0]
            inner = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(key, field.contents(), kind, inner)
    words = len(golden.fields["tokenizer.ggml.tokens"].data)
    writer.add_context_length(512)
    writer.add_embedding_length(hidden)
    writer.add_block_count(2)
    writer.add_feed_forward_length(feed)
    writer.add_head_count(heads)
    writer.add_head_count_kv(groups)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(words)
    writer.add_rope_dimension_count(hidden // heads)
    writer.add_rope_freq_base(10000.0)

    def matrix(name, rows, columns):
        values = random.standard_normal((rows, columns)) * (1.5 / np.sqrt(columns))
        writer.add_tensor(name + ".weight", values.astype(np.float32))

    def norm(name):
        values = 1 + 0.1 * random.standard_normal(hidden)
        writer.add_tensor(name + ".weight", values.astype(np.float32))

    matrix("token_embd", words, hidden)
    matrix("output", words, hidden)
    norm("output_norm")
    width = hidden // heads * groups
    for layer in range(2):
        at = f"blk.{layer}."
        norm(at + "attn_norm")
        norm(at + "ffn_norm")
        matrix(at + "attn_q", hidden, hidden)
        matrix(at + "attn_k", width, hidden)
        matrix(at + "attn_v", width, hidden)
        matrix(at + "attn_output", hidden, hidden)
        matrix(at + "ffn_gate", feed, hidden)
        matrix(at + "ffn_up", feed, hidden)
        matrix(at + "ffn_down", hidden, feed)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return words


def quantise(source, target, kind):
    options = llama_cpp.llama_model_quantize_default_params()
    options.ftype = TYPES[kind]
    options.pure = True
    return llama_cpp.llama_model_quantize(str(source).encode(), str(target).encode(), options) == 0


def forward(binary, model, ids, folder, *options):
    """The logits [rows, length, words]."""
    inputs, output = folder / "in.npz", folder / "out.npz"
    np.savez(inputs, input_ids=ids)
    output.unlink(missing_ok=True)
    done = subprocess.run(
        [binary, "forward", "--model", model, "--inputs", inputs, "--output", output, *options],
        capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(done.stderr.strip())
    return np.load(output)["logits"]


def check(binary, model, folder, random, words):
    ids = random.integers(3, words, (9, 300))
    row = ids[:1]
    for cache in CACHES:
        settings = folder / "config.toml"
        settings.write_text(f'kv-type = "{cache}"\n')
        cached = ("--backend", "cpu", "--config", str(settings))
        whole = forward(binary, model, row, folder, *cached, "--threads", "2")
        if not np.isfinite(whole).all():
            raise RuntimeError(f"{cache}: logits are not finite")
        for threads in ("1", "3", "5"):
            again = forward(binary, model, row, folder, *cached, "--threads", threads)
            if not np.array_equal(whole, again):
                raise RuntimeError(f"{cache}: {threads} threads give other logits than 2")
        for length in (1, 2, 3, 8, 9, 33, 70, 257):
            part = forward(binary, model, row[:, :length], folder, *cached)
            if not np.array_equal(whole[:, :length], part):
                raise RuntimeError(f"{cache}: {length} tokens alone give other logits")
        for count in (3, 8, 9):
            batch = forward(binary, model, ids[:count, :40], folder, *cached)
            if not np.array_equal(whole[0, :40], batch[0]):
                raise RuntimeError(f"{cache}: a batch of {count} gives other logits")
        if cache == "f32":
            want = forward(binary, model, row[:, :24], folder, "--backend", "atoms")
            off = np.linalg.norm(whole[:, :24] - want) / np.linalg.norm(want)
            if not off < NEAR:
                raise RuntimeError(f"logits are {off:.3f} of themselves off")


def main():
    binary, kinds = sys.argv[1], sys.argv[2:] or list(TYPES)
    llama_cpp.llama_log_set(silent, None)
    random = np.random.default_rng(7)
    passed = failed = 0
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        for size in SIZES:
            plain = folder / "f32.gguf"
            words = write(plain, size, random)
            for kind in kinds:
                model = folder / f"{kind}.gguf"
                if not quantise(plain, model, kind):
                    print(f"{size} {kind}: llama.cpp does not make it", flush=True)
                    continue
                try:
                    check(binary, model, folder, random, words)
                    passed += 1
                except RuntimeError as why:
                    print(f"{size} {kind}: {why}", flush=True)
                    failed += 1
                model.unlink()
    print(f"{passed} files passed, {failed} failed")
    sys.exit(failed > 0)


main()
