"""Whether an ONNX model that differs from ONNX Runtime does so for an error or for rounding.

    node_by_node.py SOMA_RUNTIME MODEL.onnx INPUTS.npz

Runs the model on ONNX Runtime without graph optimizations and keeps every value; then runs each node
alone by `soma-runtime forward`, on what ONNX Runtime gave it. Prints the nodes whose codes differ (how
many, and by how much), and those whose floats differ by more than 1e-5 of the largest number. In a
quantized model codes that differ by one lie at the border between two codes; more is an error.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import helper

CODES = (np.uint8, np.int8, np.uint16, np.int16)


def all_values(model, feeds):
    names = [o for node in model.graph.node for o in node.output if o]
    shown = onnx.ModelProto()
    shown.CopyFrom(model)
    del shown.graph.output[:]
    shown.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(
        shown.SerializeToString(), options, ["CPUExecutionProvider"])
    return dict(zip(names, session.run(names, feeds))) | feeds


def alone(model, node, values, known):
    inputs = [i for i in dict.fromkeys(node.input) if i]
    given = [i for i in inputs if i not in known]
    if not given:
        return None
    ports = [
        helper.make_tensor_value_info(
            i, helper.np_dtype_to_tensor_dtype(values[i].dtype), values[i].shape)
        for i in given
    ]
    outputs = [onnx.ValueInfoProto(name=o) for o in node.output if o]
    constants = [known[i] for i in inputs if i in known]
    graph = helper.make_graph([node], "alone", ports, outputs, constants)
    one = helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)
    return one, {i: values[i] for i in given}


def main():
    runtime, path, inputs = sys.argv[1:]
    model = onnx.load(path)
    values = all_values(model, dict(np.load(inputs)))
    known = {t.name: t for t in model.graph.initializer}
    compared = 0
    for node in model.graph.node:
        part = alone(model, node, values, known)
        if part is None:
            continue
        name = f"{node.op_type} {node.name}"
        with tempfile.TemporaryDirectory() as folder:
            file, feeds, out = (Path(folder) / n for n in ("m.onnx", "in.npz", "out.npz"))
            onnx.save(part[0], file)
            np.savez(feeds, **part[1])
            run = subprocess.run(
                [runtime, "forward", "--model", file, "--inputs", feeds, "--output", out],
                capture_output=True, text=True)
            if run.returncode != 0:
                print(f"{name}: {run.stderr.strip()}")
                continue
            got = dict(np.load(out))
        for output in filter(None, node.output):
            want, have = values[output], got[output]
            compared += 1
            if want.dtype in CODES:
                off = np.abs(want.astype(int) - have.astype(int))
                if off.any():
                    print(f"{name}: {(off > 0).sum()} of {off.size} codes, by {off.max()} at most")
            elif want.dtype.kind == "f":
                off = np.abs(want.astype(float) - have.astype(float)).max(initial=0)
                off /= max(np.abs(want.astype(float)).max(initial=0), 1e-9)
                if not off <= 1e-5:
                    print(f"{name}: floats by {off:.1e}")
            elif (want != have).any():
                print(f"{name}: {(want != have).sum()} of {want.size} numbers")
    print(f"{compared} values compared")


if __name__ == "__main__":
    main()
