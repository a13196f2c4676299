"""Small random models as exporters write them, and what ONNX Runtime makes of them.

Writes exported/NAME.onnx and exported/NAME.npz: inputs as `in.NAME`, outputs as `out.NAME`. Each
PyTorch model is exported by both of torch.onnx's exporters (`.script` and `.dynamo`), with named
dimensions where it has any; some are quantized by onnxruntime.quantization in its three ways; the
Keras- and TensorFlow-like spellings are written node by node, as tf2onnx writes them.
"""

import pathlib
import warnings

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import (
    CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static)
from onnxruntime.transformers.float16 import convert_float_to_float16
from torch import nn
from torch.nn import functional as F
from transformers import BertConfig, BertModel

OUT = pathlib.Path(__file__).parent / "exported"
warnings.filterwarnings("ignore")


def save(name, feeds):
    path = OUT / f"{name}.onnx"
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    # Integer rewrites of quantized graphs round elsewhere than the file says.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    run = onnxruntime.InferenceSession(str(path), options, ["CPUExecutionProvider"])
    names = [i.name for i in run.get_inputs()]
    values = run.run(None, {n: feeds[n] for n in names})
    arrays = {f"in.{n}": feeds[n] for n in names}
    arrays |= {f"out.{o.name}": v for o, v in zip(run.get_outputs(), values)}
    np.savez_compressed(OUT / f"{name}.npz", **arrays)


def export(name, model, inputs, outputs, dims=None, kinds=("script", "dynamo"), opset=17):
    model = model.eval()
    args, feeds = tuple(inputs.values()), {k: v.numpy() for k, v in inputs.items()}
    for kind in kinds:
        path = OUT / f"{name}.{kind}.onnx"
        how = {"input_names": list(inputs), "output_names": outputs}
        if kind == "script":
            named = {k: {i: d for i, d in enumerate(v) if d} for k, v in (dims or {}).items()}
            how |= {"dynamic_axes": named, "opset_version": opset, "dynamo": False}
        else:
            shapes = tuple(
                {i: torch.export.Dim.DYNAMIC for i, d in enumerate((dims or {}).get(k, [])) if d}
                for k in inputs)
            how |= {"dynamic_shapes": shapes if dims else None, "dynamo": True,
                    "verbose": False, "external_data": False}
        torch.onnx.export(model, args, str(path), **how)
        # Where each node came from in Python is most of such a file.
        file = onnx.load(path)
        for node in file.graph.node:
            del node.metadata_props[:]
            node.doc_string = ""
        del file.graph.value_info[:]
        onnx.save(file, path)
        save(f"{name}.{kind}", feeds)


class Bert(nn.Module):
    def __init__(self):
        super().__init__()
        self.bert = BertModel(BertConfig(
            vocab_size=61, hidden_size=24, num_hidden_layers=2, num_attention_heads=3,
            intermediate_size=40, max_position_embeddings=32))

    def forward(self, input_ids, attention_mask, token_type_ids):
        out = self.bert(input_ids=input_ids, attention_mask=attention_mask,
                        token_type_ids=token_type_ids)
        return out.last_hidden_state, out.pooler_output


class RmsNorm(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(n) + 0.5)

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


class Decoder(nn.Module):
    """One layer of a llama: grouped queries, rotary positions, a causal mask, SwiGLU."""

    def __init__(self, n=32, heads=4, groups=2):
        super().__init__()
        self.heads, self.groups, self.size = heads, groups, n // heads
        self.embed = nn.Embedding(50, n)
        self.q, self.o = nn.Linear(n, n, bias=False), nn.Linear(n, n, bias=False)
        self.k = nn.Linear(n, groups * self.size, bias=False)
        self.v = nn.Linear(n, groups * self.size, bias=False)
        self.norm, self.norm2 = RmsNorm(n), RmsNorm(n)
        self.gate, self.up = nn.Linear(n, 56, bias=False), nn.Linear(n, 56, bias=False)
        self.down = nn.Linear(56, n, bias=False)
        self.register_buffer("inv", 1e4 ** (-torch.arange(0, self.size, 2).float() / self.size))

    def rotated(self, x, cos, sin):
        a, b = x.chunk(2, -1)
        return x * cos + torch.cat((-b, a), -1) * sin

    def forward(self, ids):
        b, s = ids.shape
        x = self.embed(ids)
        y = self.norm(x)
        q, k, v = (w(y).view(b, s, -1, self.size).transpose(1, 2) for w in (self.q, self.k, self.v))
        angle = torch.arange(s).float()[None, :, None] @ self.inv[None, None, :]
        angle = torch.cat((angle, angle), -1)[:, None]
        q, k = (self.rotated(t, angle.cos(), angle.sin()) for t in (q, k))
        n = self.heads // self.groups
        k, v = (t[:, :, None].expand(b, self.groups, n, s, self.size)
                .reshape(b, self.heads, s, self.size) for t in (k, v))
        mask = torch.full((s, s), float("-inf")).triu(1)
        w = (q @ k.transpose(2, 3) / self.size ** 0.5 + mask).softmax(-1)
        x = x + self.o((w @ v).transpose(1, 2).reshape(b, s, -1))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Turned(nn.Module):
    """Rotary embeddings in the spellings of GPT-J, LLaMA, GPT-NeoX with a part that stays, and Qwen-VL."""

    def forward(self, x, positions):
        angle = positions[:, None, :, None].float() * 100 ** (-torch.arange(0, 8, 2).float() / 8)
        cos, sin = angle.cos(), angle.sin()
        each = lambda t: torch.stack((t, t), 4).flatten(3)
        a, b = x[..., ::2], x[..., 1::2]
        stacked = x * each(cos) + torch.stack((-b, a), 4).flatten(3) * each(sin)
        rows = x.view(x.shape[0], 3, x.shape[2], 4, 2)
        a, b = rows[..., 0], rows[..., 1]
        pairs = torch.stack((a * cos - b * sin, a * sin + b * cos), 4).flatten(3)
        half = lambda t: torch.cat((t, t), -1)[..., 2:6]
        kept = x[..., :4]
        a, b = kept[..., :2], kept[..., 2:]
        part = kept * half(cos) + torch.cat((-b, a), -1) * half(sin)
        a, b = x.chunk(2, -1)
        halves = torch.cat((a * cos - b * sin, b * cos + a * sin), -1)
        return stacked, pairs, torch.cat((part, x[..., 4:]), -1), halves


class Vit(nn.Module):
    def __init__(self, n=24):
        super().__init__()
        self.patch = nn.Conv2d(3, n, 8, 8)
        self.first = nn.Parameter(torch.randn(1, 1, n))
        self.qkv, self.out = nn.Linear(n, 3 * n), nn.Linear(n, n)
        self.norm, self.norm2 = nn.LayerNorm(n), nn.LayerNorm(n)
        self.up, self.down, self.head = nn.Linear(n, 48), nn.Linear(48, n), nn.Linear(n, 7)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        b = x.shape[0]
        x = torch.cat([self.first.expand(b, -1, -1), x], 1)
        q, k, v = self.qkv(self.norm(x)).reshape(b, 5, 3, 3, 8).permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, 5, 24)
        x = x + self.out(y)
        x = x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))
        return self.head(x[:, 0])


class Mobile(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.bn = nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8)
        self.deep, self.bn2 = nn.Conv2d(8, 8, 5, 1, 2, groups=8), nn.BatchNorm2d(8)
        self.squeeze, self.excite = nn.Conv2d(8, 4, 1), nn.Conv2d(4, 8, 1)
        self.group, self.instance = nn.GroupNorm(2, 8), nn.InstanceNorm2d(8, affine=True)
        self.wide, self.head = nn.Conv2d(8, 12, 3, dilation=2, padding=2), nn.Linear(12, 5)

    def forward(self, x):
        x = F.silu(self.bn(self.stem(x)))
        y = F.hardswish(self.bn2(self.deep(x)))
        x = x + y * torch.sigmoid(self.excite(F.relu(self.squeeze(y.mean((2, 3), keepdim=True)))))
        x = F.leaky_relu(self.group(x), 0.1) + F.elu(self.instance(x))
        x = F.relu6(F.max_pool2d(self.wide(x), 3, 2, 1, ceil_mode=True))
        return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1)).log_softmax(-1)


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.all = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(8, 12, 3, 2, 1, bias=False), nn.BatchNorm2d(12), nn.Hardswish(),
            nn.Conv2d(12, 12, 5, padding=2, groups=12), nn.ReLU6(), nn.AdaptiveAvgPool2d(1))
        self.head = nn.Linear(12, 5)

    def forward(self, x):
        return self.head(self.all(x).flatten(1))


class Unet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down, self.deep = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, 8, 3, padding=1)
        self.up, self.join = nn.ConvTranspose2d(8, 6, 2, 2), nn.Conv2d(12, 6, 3, padding=1)
        self.slope, self.out = nn.PReLU(6), nn.Conv2d(6, 4, 1)

    def forward(self, x):
        a = F.relu(self.down(x))
        b = F.gelu(self.deep(F.avg_pool2d(a, 2)))
        c = self.slope(self.join(torch.cat([a, self.up(b)], 1)))
        d = F.interpolate(c, scale_factor=2, mode="bilinear", align_corners=True)
        e = F.interpolate(c, size=(20, 28), mode="bicubic", align_corners=False)
        return torch.sigmoid(self.out(d)), e, self.out(c).argmax(1)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(12, 10, 2, batch_first=True, bidirectional=True)
        self.gru, self.rnn = nn.GRU(20, 9, batch_first=True), nn.RNN(9, 6, batch_first=True)

    def forward(self, x):
        y, (h, c) = self.lstm(x)
        return self.rnn(self.gru(y)[0])[0], h, c


class Voice(nn.Module):
    """Convolutions of one dimension, as vocoders have them."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv1d(4, 12, 7, 2, 3), nn.Conv1d(12, 12, 3, dilation=4, padding=4)
        self.norm, self.up = nn.LayerNorm(12), nn.ConvTranspose1d(12, 8, 8, 4, 2)
        self.last = nn.Conv1d(8, 8, 3, groups=4)

    def forward(self, x):
        x = F.leaky_relu(self.a(x), 0.1)
        y = torch.tanh(self.b(x)) * torch.sigmoid(self.b(x))
        y = self.up(self.norm((x + y).transpose(1, 2)).transpose(1, 2))
        return self.last(y), F.glu(y, 1), F.max_pool1d(y, 3, 2, 1)


class Volume(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.up = nn.Conv3d(2, 5, 3, padding=1), nn.ConvTranspose3d(5, 3, 2, 2)

    def forward(self, x):
        y = self.up(F.max_pool3d(F.relu(self.a(x)), 2))
        return y, F.interpolate(x, scale_factor=2, mode="trilinear")


class Activations(nn.Module):
    """The spellings of activations."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(16, 24)

    def forward(self, x):
        y = self.a(x)
        quick = y * torch.sigmoid(1.702 * y)
        new = 0.5 * y * (1 + torch.tanh(0.7978845608028654 * (y + 0.044715 * torch.pow(y, 3.0))))
        fast = 0.5 * y * (1 + torch.tanh(y * 0.7978845608 * (1 + 0.044715 * y * y)))
        erf = y * 0.5 * (1 + torch.erf(y / 1.4142135381698608))
        return quick, new, fast, erf, F.mish(y), F.softplus(y), F.gelu(y), F.selu(y), F.silu(y)


class Shapes(nn.Module):
    """Everything that only moves, sorts, counts or compares."""

    def forward(self, x, i):
        top, where = x.topk(3, dim=-1)
        return (
            torch.where(x > 0, x, x * 0.1).clamp(-1, 2), x.cumsum(1), top, where,
            torch.gather(x, 1, i), torch.einsum("bij,bkj->bik", x, x), x.std(-1, keepdim=True),
            F.pad(x, (1, 2, 0, 1), value=0.5), x.flip(1), F.normalize(x, dim=-1),
            x.pow(3) + torch.floor(x) + torch.round(x * 3), (x @ x.transpose(1, 2)).tril(),
            x.roll(2, 1), x.amax(1), F.one_hot(i.clamp(0, 4), 5).float(), torch.nonzero(x > 0.5))


class Loops(nn.Module):
    def forward(self, x, n):
        y = x
        for k in range(int(n)):
            y = y * 0.9 + k
        if bool(y.sum() > 0):
            y = y + 1
        else:
            y = y - 1
        return y


def by_hand(name, nodes, inputs, outputs, weights, feeds, opset=13):
    """A graph of (operator, inputs, outputs, attributes)."""
    made = [helper.make_node(op, i, o, name=f"n{k}", **a) for k, (op, i, o, a) in enumerate(nodes)]
    graph = helper.make_graph(
        made, name,
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in inputs.items()],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in outputs],
        [numpy_helper.from_array(v, n) for n, v in weights.items()])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    onnx.save(model, OUT / f"{name}.onnx")
    save(name, feeds)


def keras():
    """Layer normalization with its mean multiplied out, softmax and GELU in small operators,
    channels last around a convolution."""
    rng = np.random.default_rng(3)
    f = lambda *s: (0.5 * rng.standard_normal(s)).astype(np.float32)
    one = lambda x: np.array(x, np.float32)
    norm = [
        ("ReduceMean", ["x"], ["mean"], {"axes": [2], "keepdims": 1}),
        ("Sub", ["x", "mean"], ["less"], {}), ("Mul", ["less", "less"], ["square"], {}),
        ("ReduceMean", ["square"], ["var"], {"axes": [2], "keepdims": 1}),
        ("Add", ["var", "eps"], ["above"], {}), ("Sqrt", ["above"], ["root"], {}),
        ("Reciprocal", ["root"], ["inverse"], {}), ("Mul", ["inverse", "gamma"], ["factor"], {}),
        ("Mul", ["x", "factor"], ["scaled"], {}), ("Mul", ["mean", "factor"], ["moved"], {}),
        ("Sub", ["beta", "moved"], ["shift"], {}), ("Add", ["scaled", "shift"], ["normed"], {}),
        ("MatMul", ["normed", "kernel"], ["product"], {}), ("Add", ["product", "bias"], ["z"], {}),
        ("Mul", ["z", "root_half"], ["e0"], {}), ("Erf", ["e0"], ["e1"], {}),
        ("Add", ["e1", "one"], ["e2"], {}), ("Mul", ["half", "z"], ["e3"], {}),
        ("Mul", ["e3", "e2"], ["gelu"], {}),
        ("ReduceMax", ["gelu"], ["top"], {"axes": [-1], "keepdims": 1}),
        ("Sub", ["gelu", "top"], ["s0"], {}), ("Exp", ["s0"], ["s1"], {}),
        ("ReduceSum", ["s1", "last"], ["s2"], {"keepdims": 1}), ("Div", ["s1", "s2"], ["y"], {}),
    ]
    by_hand("keras_dense", norm, {"x": ["batch", 5, 12]}, ["y", "normed"], {
        "eps": one(1e-3), "gamma": f(12), "beta": f(12), "kernel": f(12, 9), "bias": f(9),
        "root_half": one(0.5 ** 0.5), "one": one(1), "half": one(0.5),
        "last": np.array([-1], np.int64)}, {"x": f(3, 5, 12)})
    conv = [
        ("Transpose", ["x"], ["t"], {"perm": [0, 3, 1, 2]}),
        ("Pad", ["t", "pads"], ["p"], {}),
        ("Conv", ["p", "w"], ["c"], {"strides": [2, 2], "kernel_shape": [3, 3]}),
        ("Transpose", ["c"], ["u"], {"perm": [0, 2, 3, 1]}), ("Add", ["u", "bias"], ["v"], {}),
        ("BatchNormalization", ["c", "g", "b", "m", "s"], ["bn"], {"epsilon": 1e-3}),
        ("Clip", ["bn", "low", "high"], ["six"], {}),
        ("GlobalAveragePool", ["six"], ["pooled"], {}), ("Flatten", ["pooled"], ["y"], {}),
        ("Relu", ["v"], ["r"], {}),
    ]
    by_hand("keras_conv", conv, {"x": ["batch", 15, 13, 3]}, ["y", "r"], {
        "pads": np.array([0, 0, 0, 0, 0, 0, 1, 1], np.int64), "w": f(8, 3, 3, 3), "bias": f(8),
        "g": f(8), "b": f(8), "m": f(8), "s": np.abs(f(8)) + 0.5, "low": one(0), "high": one(6),
    }, {"x": f(2, 15, 13, 3)})


class Reader(CalibrationDataReader):
    def __init__(self, feeds):
        self.left = iter([feeds] * 2)

    def get_next(self):
        return next(self.left, None)


def quantized():
    rng = np.random.default_rng(5)
    plain = {"x": rng.standard_normal((2, 3, 25, 31)).astype(np.float32)}
    for name, form in [("qdq", QuantFormat.QDQ), ("qop", QuantFormat.QOperator)]:
        quantize_static(OUT / "plain.script.onnx", OUT / f"plain_{name}.onnx", Reader(plain),
                        quant_format=form, per_channel=name == "qdq", weight_type=QuantType.QInt8)
        save(f"plain_{name}", plain)
    vit = {"x": rng.standard_normal((2, 3, 16, 16)).astype(np.float32)}
    quantize_static(OUT / "vit.script.onnx", OUT / "vit_qdq.onnx", Reader(vit),
                    activation_type=QuantType.QInt8, weight_type=QuantType.QInt8)
    save("vit_qdq", vit)
    for source in ["bert"]:
        quantize_dynamic(OUT / f"{source}.script.onnx", OUT / f"{source}_dynamic.onnx")
        feeds = np.load(OUT / f"{source}.script.npz")
        save(f"{source}_dynamic", {k[3:]: v for k, v in feeds.items() if k.startswith("in.")})


def half():
    """In 16 bits by onnxruntime's converter, which puts its casts behind all other nodes."""
    model = convert_float_to_float16(onnx.load(OUT / "mobile.script.onnx"), keep_io_types=True)
    onnx.save(model, OUT / "mobile_half.onnx")
    feeds = np.load(OUT / "mobile.script.npz")
    save("mobile_half", {k[3:]: v for k, v in feeds.items() if k.startswith("in.")})


def one_node(name, node, inputs, initializers):
    """A model of one node, whose outputs ONNX Runtime types."""
    kind = helper.np_dtype_to_tensor_dtype
    ports = [helper.make_tensor_value_info(k, kind(v.dtype), v.shape) for k, v in inputs.items()]
    outputs = [onnx.ValueInfoProto(name=o) for o in node.output]
    constants = [numpy_helper.from_array(np.asarray(v), k) for k, v in initializers.items()]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph([node], name, ports, outputs, constants)
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    onnx.save(model, OUT / f"{name}.onnx")
    save(name, inputs)


def microsoft(rng):
    """Operators of com.microsoft that onnxruntime.quantization writes."""
    def normal(*shape):
        return rng.standard_normal(shape).astype(np.float32)

    def signed(w):
        scale = np.float32(np.abs(w).max() / 127)
        return np.round(w / scale).astype(np.int8), scale

    def unsigned(w):
        low, high = min(w.min(), 0), max(w.max(), 0)
        scale = np.float32((high - low) / 255)
        zero = np.uint8(round(-low / scale))
        return np.clip(np.round(w / scale) + zero, 0, 255).astype(np.uint8), scale, zero

    def node(op, inputs, outputs, **attributes):
        return helper.make_node(op, inputs, outputs, domain="com.microsoft", **attributes)

    hidden, directions = 6, 2
    w, r = zip(*[(signed(normal(8, 4 * hidden) * .4), signed(normal(hidden, 4 * hidden) * .4))
                 for _ in range(directions)])
    one_node(
        "lstm_codes",
        node("DynamicQuantizeLSTM", ["x", "w", "r", "b", "", "h", "c", "", "ws", "wz", "rs", "rz"],
             ["y", "yh", "yc"], hidden_size=hidden, direction="bidirectional"),
        {"x": normal(5, 2, 8)},
        {"w": np.stack([q for q, _ in w]), "r": np.stack([q for q, _ in r]),
         "b": normal(directions, 8 * hidden) * .1,
         "h": normal(directions, 2, hidden) * .2, "c": normal(directions, 2, hidden) * .2,
         "ws": np.array([s for _, s in w]), "rs": np.array([s for _, s in r]),
         "wz": np.zeros(directions, np.int8), "rz": np.zeros(directions, np.int8)})
    width = 12
    x = rng.integers(0, 256, (2, 5, width)).astype(np.uint8)
    codes, scale = signed(normal(width, 3 * width) * .3)
    weights = {"w": codes, "b": normal(3 * width) * .1, "xs": np.float32(.02), "ws": scale,
               "xz": np.uint8(120), "wz": np.int8(0)}
    one_node("attention_codes",
             node("QAttention", ["x", "w", "b", "xs", "ws", "mask", "xz", "wz"], ["y"],
                  num_heads=3),
             {"x": x, "mask": np.array([[1, 1, 1, 1, 0], [1, 1, 1, 0, 0]], np.int32)}, weights)
    one_node("attention_codes_past",
             node("QAttention", ["x", "w", "b", "xs", "ws", "", "xz", "wz", "past"],
                  ["y", "present"], num_heads=3, unidirectional=1),
             {"x": x, "past": normal(2, 2, 3, 4, 4)}, weights)
    tables = [unsigned(t) for t in
              (normal(30, width), normal(10, width), normal(2, width), normal(width) * .1 + 1,
               normal(width) * .1)]
    names = [f"{kind}{i}" for kind in "tsz" for i in range(5)]
    one_node("embeddings_codes",
             node("QEmbedLayerNormalization",
                  ["ids", "kinds", *names[:5], "mask", *names[5:]], ["y", "lengths"],
                  epsilon=1e-5),
             {"ids": rng.integers(0, 30, (2, 6)).astype(np.int32),
              "kinds": rng.integers(0, 2, (2, 6)).astype(np.int32),
              "mask": np.array([[1] * 6, [1, 1, 1, 0, 0, 0]], np.int32)},
             {f"{kind}{i}": t[k] for k, kind in enumerate("tsz") for i, t in enumerate(tables)})


def recurrent(rng):
    """LSTM, GRU and RNN with all their attributes, each kind in one model."""
    def normal(*shape):
        return (0.4 * rng.standard_normal(shape)).astype(np.float32)

    steps, batch, width, hidden = 7, 3, 5, 6
    lengths = np.array([7, 2, 4], np.int32)
    functions = {
        "LSTM": (4, ["HardSigmoid", "ScaledTanh", "Softsign"], [0.3, 1.2], [0.4, 0.7]),
        "GRU": (3, ["Affine", "LeakyRelu"], [0.2, 0.05], [0.5]),
        "RNN": (1, ["Elu"], [0.8], []),
    }
    for op, (gates, names, alpha, beta) in functions.items():
        nodes, weights, outputs = [], {}, []
        plain = [{}, {"direction": "reverse"}, {"direction": "bidirectional", "clip": 0.5},
                 {"direction": "bidirectional", "lengths": True},
                 {"activations": names, "activation_alpha": alpha, "activation_beta": beta}]
        if op == "LSTM":
            plain += [{"peepholes": True, "direction": "bidirectional"}, {"input_forget": 1}]
        if op == "GRU":
            plain += [{"linear_before_reset": 1, "direction": "bidirectional"}]
        for number, attributes in enumerate(plain):
            attributes = dict(attributes)
            both = attributes.get("direction") == "bidirectional"
            d = 2 if both else 1
            own = {"w": normal(d, gates * hidden, width), "r": normal(d, gates * hidden, hidden),
                   "b": normal(d, 2 * gates * hidden), "h": normal(d, batch, hidden)}
            inputs = ["x", "w", "r", "b", "", "h"]
            if attributes.pop("lengths", False):
                own["n"] = lengths
                inputs[4] = "n"
            if op == "LSTM":
                own["c"] = normal(d, batch, hidden)
                inputs.append("c")
                if attributes.pop("peepholes", False):
                    own["p"] = normal(d, 3 * hidden)
                    inputs.append("p")
            weights |= {f"{k}{number}": v for k, v in own.items()}
            made = ["y", "yh", "yc"][:3 if op == "LSTM" else 2]
            made = [f"{name}{number}" for name in made]
            named = [f"{i}{number}" if i and i != "x" else i for i in inputs]
            attributes = {k: v for k, v in attributes.items() if v != []} | {"hidden_size": hidden}
            nodes.append((op, named, made, attributes))
            outputs += made
        by_hand(f"all_{op.lower()}", nodes, {"x": [steps, batch, width]}, outputs, weights,
                {"x": normal(steps, batch, width)}, opset=14)


def main():
    OUT.mkdir(exist_ok=True)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    r = torch.randn
    mask = torch.ones(3, 7, dtype=torch.long)
    mask[1, 4:] = 0
    ids = torch.randint(0, 61, (3, 7))
    kinds = torch.zeros(3, 7, dtype=torch.long)
    two = ["batch", "tokens"]
    export("bert", Bert(), {"input_ids": ids, "attention_mask": mask, "token_type_ids": kinds},
           ["hidden", "pooled"], {"input_ids": two, "attention_mask": two, "token_type_ids": two})
    export("decoder", Decoder(), {"ids": torch.randint(0, 50, (2, 7))}, ["y"], {"ids": two})
    positions = torch.arange(10).view(2, 5)
    export("turned", Turned(), {"x": r(2, 3, 5, 8), "positions": positions},
           [f"y{i}" for i in range(4)], {"x": ["batch", "", "tokens"], "positions": two})
    export("vit", Vit(), {"x": r(2, 3, 16, 16)}, ["y"], {"x": ["batch"]})
    export("mobile", Mobile(), {"x": r(2, 3, 25, 31)}, ["y"], {"x": ["batch"]})
    export("plain", Plain(), {"x": r(2, 3, 25, 31)}, ["y"], {"x": ["batch"]}, ("script",))
    export("unet", Unet(), {"x": r(1, 3, 16, 24)}, ["y", "e", "best"])
    export("recurrent", Recurrent(), {"x": r(2, 6, 12)}, ["y", "h", "c"],
           {"x": ["batch"]}, ("script",))
    export("voice", Voice(), {"x": r(2, 4, 50)}, ["a", "b", "c"], {"x": ["", "", "time"]})
    export("volume", Volume(), {"x": r(1, 2, 6, 6, 6)}, ["a", "b"], None, ("script",))
    export("activations", Activations(), {"x": r(3, 16)}, [f"y{i}" for i in range(9)])
    export("shapes", Shapes(), {"x": r(2, 5, 6), "i": torch.randint(0, 5, (2, 3, 6))},
           [f"y{i}" for i in range(16)], {"x": ["batch"], "i": ["batch"]})
    export("loops", torch.jit.script(Loops()), {"x": r(2, 3), "n": torch.tensor(4)}, ["y"],
           None, ("script",))
    keras()
    quantized()
    microsoft(np.random.default_rng(7))
    recurrent(np.random.default_rng(11))
    half()


if __name__ == "__main__":
    main()
