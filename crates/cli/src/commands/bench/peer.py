"""Measures llama.cpp the way `soma-runtime bench` measures itself. Prints one JSON object.

Arguments: model file, threads, prompt tokens, generated tokens, depth, repeats.
Needs the package llama-cpp-python.
"""

import json
import sys
import time

import llama_cpp


def main():
    path = sys.argv[1]
    threads, prompt, generated, depth, repeat = map(int, sys.argv[2:7])
    start = time.perf_counter()
    length = depth + max(prompt, generated) + 8
    model = llama_cpp.Llama(
        path, n_ctx=length, n_threads=threads, n_threads_batch=threads,
        n_batch=512, n_ubatch=512, flash_attn=True, verbose=False,
    )
    load_ms = (time.perf_counter() - start) * 1000
    vocabulary = model.n_vocab()
    tokens = [(7 + 31 * i) % vocabulary for i in range(length)]

    def fill(count):
        model.reset()
        if count:
            model.eval(tokens[:count])

    fill(max(depth, 1))  # weights come from disk and threads from sleep the first time
    model.eval(tokens[:1])
    prefill, decode = [], []
    for _ in range(repeat if prompt else 0):
        fill(depth)
        start = time.perf_counter()
        model.eval(tokens[depth:depth + prompt])
        prefill.append(prompt / (time.perf_counter() - start))
    for _ in range(repeat if generated else 0):
        fill(depth)
        start = time.perf_counter()
        for i in range(generated):
            model.eval(tokens[depth + i:depth + i + 1])
        decode.append(generated / (time.perf_counter() - start))
    print(json.dumps({
        "version": llama_cpp.__version__, "load_ms": load_ms,
        "prefill": prefill, "decode": decode,
    }))


main()
