"""Measures transformers on PyTorch the way `soma-runtime bench` measures an encoder. Prints one
JSON object.

Arguments: model directory, threads, batch, tokens, repeats. Needs the package transformers.
"""

import json
import resource
import sys
import time

import torch
import transformers


def peak_memory_mb():
    """Of this process. On Linux `ru_maxrss` begins at what the program that started it held."""
    if sys.platform == "linux":
        lines = open("/proc/self/status").read().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024
    unit = 1 << 20 if sys.platform == "darwin" else 1 << 10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


def main():
    path = sys.argv[1]
    threads, batch, tokens, repeat = map(int, sys.argv[2:6])
    torch.set_num_threads(threads)
    model = transformers.AutoModel.from_pretrained(path, dtype=torch.float32).eval()
    ids = torch.arange(batch * tokens).reshape(batch, tokens) * 7919 % model.config.vocab_size
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    times = []
    with torch.inference_mode():
        for _ in range(2):
            model(**inputs)
        for _ in range(repeat):
            start = time.perf_counter()
            model(**inputs)
            times.append((time.perf_counter() - start) * 1000)
    print(json.dumps({
        "version": torch.__version__, "run_ms": times, "peak_memory_mb": peak_memory_mb(),
    }))


main()
