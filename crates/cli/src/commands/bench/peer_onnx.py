"""Measures ONNX Runtime the way `soma-runtime bench` measures itself; peer_runs.py comes before.

Arguments: model file, .npz file with the inputs, threads, repeats. Needs the package onnxruntime.
"""

import numpy as np
import onnxruntime


def main():
    path, inputs = sys.argv[1:3]
    threads, repeat = map(int, sys.argv[3:5])
    feeds = dict(np.load(inputs))
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(path, options, ["CPUExecutionProvider"])
    measure(onnxruntime.__version__, lambda: session.run(None, feeds), repeat)


main()
