"""Measures ONNX Runtime the way `soma-runtime bench` measures itself. Prints one JSON object.

Arguments: model file, .npz file with the inputs, threads, repeats. Needs the package onnxruntime.
"""

import json
import resource
import sys
import time

import numpy as np
import onnxruntime


def peak_memory_mb():
    """Of this process. On Linux `ru_maxrss` begins at what the program that started it held."""
    if sys.platform == "linux":
        lines = open("/proc/self/status").read().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024
    unit = 1 << 20 if sys.platform == "darwin" else 1 << 10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


def main():
    path, inputs = sys.argv[1:3]
    threads, repeat = map(int, sys.argv[3:5])
    feeds = dict(np.load(inputs))
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(path, options, ["CPUExecutionProvider"])
    for _ in range(2):
        session.run(None, feeds)
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        session.run(None, feeds)
        times.append((time.perf_counter() - start) * 1000)
    print(json.dumps({
        "version": onnxruntime.__version__, "run_ms": times,
        "peak_memory_mb": peak_memory_mb(),
    }))


main()
