"""Random small models as exporters write them, against ONNX Runtime.

    python exports.py SOMA_RUNTIME COUNT SEED

Makes COUNT models with random sizes (convolutional networks, encoders and decoders of transformers, audio,
recurrent layers, Keras- and TensorFlow-like spellings), exports each by one of torch.onnx's two exporters and
quantizes some by onnxruntime.quantization, runs them on random inputs and compares every output. Prints each model
that differs by more than 1e-4 of an output's largest number, or fails, and a count. Run by hand; nothing is stored.
ONNX Runtime runs without graph optimizations where a model has codes, since these round elsewhere.
"""

import collections
import contextlib
import io
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

sys.path.pop(0)  # tokenizers.py beside this file is not the package

import numpy as np
import onnx
import onnxruntime as ort
import torch
import transformers as tf
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static
from torch import nn
from torch.nn import functional as F

LIMIT = 1e-4
CODES = 2e-2
warnings.filterwarnings("ignore")


def pick(rng, *values):
    return values[rng.integers(len(values))]


class Wrapped(nn.Module):
    """A model of transformers as a function of positional tensors."""

    def __init__(self, model, names, outputs):
        super().__init__()
        self.model, self.names, self.outputs = model, names, outputs

    def forward(self, *args):
        made = self.model(**dict(zip(self.names, args)), return_dict=True)
        return tuple(made[o] for o in self.outputs if made.get(o) is not None)


class Cnn(nn.Module):
    """Blocks of convolutions as the usual families have them."""

    def __init__(self, rng):
        super().__init__()
        self.kinds, self.blocks = [], nn.ModuleList()
        n = int(rng.integers(4, 20))
        self.stem = nn.Conv2d(3, n, pick(rng, 3, 5, 7), pick(rng, 1, 2), pick(rng, 0, 1, 2), bias=False)
        self.norm = nn.BatchNorm2d(n)
        for _ in range(rng.integers(2, 6)):
            kind = pick(rng, "plain", "residual", "depthwise", "squeeze", "dense", "pool", "shuffle", "up", "wide")
            m = int(rng.integers(1, 12)) * 2
            act = pick(rng, nn.ReLU(), nn.SiLU(), nn.Hardswish(), nn.LeakyReLU(0.1), nn.GELU(), nn.ReLU6(),
                       nn.Mish(), nn.PReLU(), nn.ELU(), nn.Hardsigmoid(), nn.Softplus())
            if kind == "plain":
                block = nn.Sequential(nn.Conv2d(n, m, 3, pick(rng, 1, 2), 1, dilation=1), nn.BatchNorm2d(m), act)
                n = m
            elif kind == "wide":
                block = nn.Sequential(nn.Conv2d(n, m, (3, 5), padding=(2, 2), dilation=(2, 1)), nn.InstanceNorm2d(
                    m, affine=True), act)
                n = m
            elif kind == "residual":
                block = nn.Sequential(nn.Conv2d(n, n, 3, 1, 1), nn.BatchNorm2d(n), act, nn.Conv2d(n, n, 1))
            elif kind == "depthwise":
                block = nn.Sequential(nn.Conv2d(n, n, pick(rng, 3, 5), 1, "same", groups=n), nn.BatchNorm2d(n), act,
                                      nn.Conv2d(n, n, 1, bias=False), nn.GroupNorm(1, n))
            elif kind == "squeeze":
                block = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(n, 3, 1), act, nn.Conv2d(3, n, 1),
                                      pick(rng, nn.Sigmoid(), nn.Hardsigmoid()))
            elif kind == "dense":
                block = nn.Sequential(nn.BatchNorm2d(n), act, nn.Conv2d(n, m, 3, 1, 1))
                n += m
            elif kind == "pool":
                block = pick(rng, nn.MaxPool2d(3, 2, 1, ceil_mode=bool(rng.integers(2))), nn.AvgPool2d(2, 1, ceil_mode=True),
                             nn.AvgPool2d(3, 2, 1, count_include_pad=bool(rng.integers(2))), nn.MaxPool2d(2, 1, dilation=2))
            elif kind == "shuffle":
                n -= n % 2
                block = nn.Sequential(nn.LazyConv2d(n, 1), nn.ChannelShuffle(2))
            else:
                block = pick(rng, nn.ConvTranspose2d(n, n, 2, 2), nn.ConvTranspose2d(n, n, 3, 2, 1, 1),
                             nn.Upsample(scale_factor=2, mode="nearest"),
                             nn.Upsample(scale_factor=2, mode="bilinear", align_corners=bool(rng.integers(2))))
            self.kinds.append(kind)
            self.blocks.append(block)
        self.head = nn.Linear(n, 7)

    def forward(self, x):
        x = F.relu(self.norm(self.stem(x)))
        for kind, block in zip(self.kinds, self.blocks):
            y = block(x)
            if kind in ("residual", "depthwise"):
                y = x + y
            elif kind == "squeeze":
                y = x * y
            elif kind == "dense":
                y = torch.cat([x, y], 1)
            x = y
        return self.head(x.mean((2, 3))), x


def cnn(rng):
    x = torch.randn(int(rng.integers(1, 3)), 3, int(rng.integers(17, 40)), int(rng.integers(17, 40)))
    model = Cnn(rng)
    model.eval()(x)
    return model, [x], ["logits", "maps"]


def text(rng):
    """An encoder of transformers, with a padded batch."""
    name = pick(rng, "Bert", "Roberta", "DistilBert", "Electra", "MPNet", "Albert", "DebertaV2", "ModernBert",
                "XLMRoberta", "NomicBert", "RoFormer", "Funnel", "MobileBert", "SqueezeBert", "Longformer")
    heads = int(rng.integers(1, 5))
    width = heads * 2 * int(rng.integers(3, 10))
    sizes = dict(vocab_size=90, hidden_size=width, num_attention_heads=heads, num_hidden_layers=int(rng.integers(1, 3)),
                 intermediate_size=int(rng.integers(20, 70)), max_position_embeddings=64, pad_token_id=1)
    if name == "DistilBert":
        sizes = dict(vocab_size=90, dim=width, n_heads=heads, n_layers=2, hidden_dim=50, pad_token_id=1)
    if name == "Funnel":
        sizes = dict(vocab_size=90, block_sizes=[1, 1], d_model=width, n_head=heads, d_head=width // heads, d_inner=40)
    if name == "ModernBert":
        sizes |= dict(cls_token_id=2, sep_token_id=3, bos_token_id=2, eos_token_id=3)
    if name == "SqueezeBert":
        sizes |= dict(q_groups=1, k_groups=1, v_groups=1, post_attention_groups=1, intermediate_groups=1,
                      output_groups=1, embedding_size=width)
    if name == "Longformer":
        sizes |= dict(attention_window=4)
    if name not in ("ModernBert", "NomicBert", "DistilBert", "Funnel", "Longformer"):
        sizes["hidden_act"] = pick(rng, "gelu", "relu", "gelu_new", "silu", "gelu_pytorch_tanh")
    if name == "DebertaV2":
        sizes |= dict(relative_attention=True, pos_att_type=["c2p", "p2c"], position_buckets=8)
    config = getattr(tf, name + "Config")(**sizes)
    config._attn_implementation = pick(rng, "eager", "sdpa") if name in ("Bert", "Roberta", "DistilBert") else "eager"
    model = getattr(tf, name + "Model")._from_config(config)
    b, s = int(rng.integers(1, 4)), int(rng.integers(2, 6)) * 4
    ids = torch.from_numpy(rng.integers(4, 90, (b, s)))
    mask = torch.ones(b, s, dtype=torch.long)
    mask[-1, s - 2:] = 0
    return Wrapped(model, ["input_ids", "attention_mask"], ["last_hidden_state"]), [ids, mask], ["hidden"]


def vision(rng):
    name = pick(rng, "ViT", "DeiT", "ConvNext", "ConvNextV2", "Segformer", "Swin", "ResNet", "MobileNetV2", "RegNet",
                "Dinov2", "CLIPVision", "SiglipVision", "PoolFormer", "MobileViT", "Beit", "PvtV2", "EfficientNet")
    width = int(rng.integers(1, 4)) * 8
    side = 32
    common = dict(hidden_size=width, num_attention_heads=2, num_hidden_layers=2, intermediate_size=40, image_size=side,
                  patch_size=8)
    four = dict(depths=[1, 1, 1, 1])
    config = {
        "ConvNext": dict(hidden_sizes=[8, 12, 16, 20], **four), "ConvNextV2": dict(hidden_sizes=[8, 12, 16, 20], **four),
        "Segformer": dict(depths=[1, 1, 1, 1], hidden_sizes=[8, 8, 16, 16], num_attention_heads=[1, 1, 2, 2],
                          sr_ratios=[2, 2, 1, 1]),
        "Swin": dict(image_size=side, patch_size=4, embed_dim=8, depths=[2, 1], num_heads=[2, 2], window_size=4),
        "ResNet": dict(embedding_size=8, hidden_sizes=[8, 12, 16, 20], depths=[1, 1, 1, 1],
                       layer_type=pick(rng, "basic", "bottleneck")),
        "MobileNetV2": dict(depth_multiplier=0.35), "EfficientNet": dict(width_coefficient=0.3, depth_coefficient=0.3),
        "RegNet": dict(embedding_size=8, hidden_sizes=[8, 16, 16, 24], depths=[1, 1, 1, 1], groups_width=8,
                       layer_type=pick(rng, "x", "y")),
        "PoolFormer": dict(hidden_sizes=[8, 8, 16, 16], depths=[1, 1, 1, 1]),
        "MobileViT": dict(image_size=side, hidden_sizes=[16, 24, 32], neck_hidden_sizes=[8, 8, 16, 16, 24, 24, 32],
                          num_attention_heads=2),
        "PvtV2": dict(hidden_sizes=[8, 8, 16, 16], depths=[1, 1, 1, 1], num_attention_heads=[1, 1, 2, 2]),
    }.get(name, common)
    if name in ("Beit", "ViT", "DeiT", "Dinov2"):
        config = dict(config, hidden_act=pick(rng, "gelu", "gelu_new"))
    if name == "Beit":
        config |= dict(use_relative_position_bias=True, use_shared_relative_position_bias=False)
    if name == "Dinov2":
        config.pop("intermediate_size")
    config = getattr(tf, name + "Config")(**config)
    config._attn_implementation = "eager"
    model = getattr(tf, name + "Model")._from_config(config)
    x = torch.randn(int(rng.integers(1, 3)), 3, side, side)
    return Wrapped(model, ["pixel_values"], ["last_hidden_state", "pooler_output"]), [x], ["hidden", "pooled"]


class Cached(nn.Module):
    """A decoder that is given its keys and values and gives them longer."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, ids, *past):
        cache = tf.DynamicCache()
        for layer in range(len(past) // 2):
            cache.update(past[2 * layer], past[2 * layer + 1], layer)
        positions = torch.arange(past[0].shape[2], past[0].shape[2] + ids.shape[1])[None]
        made = self.model(input_ids=ids, past_key_values=cache, position_ids=positions, use_cache=True)
        new = [t for layer in made.past_key_values.layers for t in (layer.keys, layer.values)]
        return (made.logits, *new)


def decoder(rng):
    name = pick(rng, "Llama", "Qwen2", "Mistral", "GPT2", "GPTNeoX", "Gemma2", "Phi", "Qwen3", "Gemma3", "GPTJ", "Cohere",
                "StableLm", "Olmo2", "Granite", "Falcon", "OPT", "Bloom")
    heads = int(rng.integers(1, 4)) * 2
    groups = pick(rng, heads, heads // 2)
    size = 2 * int(rng.integers(4, 9))
    layers = 2
    sizes = dict(vocab_size=80, hidden_size=heads * size, num_attention_heads=heads, num_key_value_heads=groups,
                 num_hidden_layers=layers, intermediate_size=44, max_position_embeddings=64, head_dim=size)
    if name in ("GPT2", "GPTJ"):
        sizes = dict(vocab_size=80, n_embd=heads * size, n_head=heads, n_layer=layers, n_positions=64)
        if name == "GPTJ":
            sizes["rotary_dim"] = size // 4 * 2
        groups = heads
    if name in ("GPTNeoX", "Phi", "OPT", "Bloom", "Falcon"):
        groups = heads
        sizes.pop("head_dim")
    if name == "Gemma3":
        name = "Gemma3Text"
    config = getattr(tf, name + "Config")(**{k: v for k, v in sizes.items() if name != "OPT" or k != "num_key_value_heads"})
    config._attn_implementation = pick(rng, "eager", "sdpa")
    if name == "Gemma3Text":
        model = tf.Gemma3ForCausalLM._from_config(config)
    else:
        model = getattr(tf, name + {"GPT2": "LMHeadModel"}.get(name, "ForCausalLM"))._from_config(config)
    b, s, past = 1 + int(rng.integers(2)), int(rng.integers(1, 4)), int(rng.integers(1, 6))
    ids = torch.from_numpy(rng.integers(0, 80, (b, s)))
    with torch.no_grad():
        made = model(input_ids=torch.from_numpy(rng.integers(0, 80, (b, past))), use_cache=True).past_key_values
    past = [t for layer in made.layers for t in (layer.keys, layer.values)]
    outputs = ["logits"] + [f"new{i}" for i in range(len(past))]
    return Cached(model), [ids, *past], outputs


class Audio(nn.Module):
    def __init__(self, rng):
        super().__init__()
        n, h = int(rng.integers(3, 9)) * 2, int(rng.integers(5, 20))
        self.a = nn.Conv1d(1, n, pick(rng, 5, 10), pick(rng, 2, 5), bias=False)
        self.norm = pick(rng, nn.GroupNorm(2, n), nn.BatchNorm1d(n))
        self.b = nn.Conv1d(n, 2 * n, 3, 1, dilation=2, padding=2)
        self.kind = pick(rng, "lstm", "gru", "rnn")
        both = bool(rng.integers(2))
        make = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}[self.kind]
        self.rnn = make(n, h, int(rng.integers(1, 3)), batch_first=bool(rng.integers(2)), bidirectional=both)
        self.up = nn.ConvTranspose1d(h * (1 + both), 4, pick(rng, 4, 6), 2, 1)
        self.slope = nn.PReLU()

    def forward(self, x):
        x = F.gelu(self.norm(self.a(x)))
        x = F.glu(self.b(x), 1)
        x = x.transpose(1, 2) if self.rnn.batch_first else x.permute(2, 0, 1)
        y, state = self.rnn(x)
        y = y.transpose(1, 2) if self.rnn.batch_first else y.permute(1, 2, 0)
        return torch.tanh(self.slope(self.up(y))), y.std(-1), state[0]


def audio(rng):
    if rng.integers(3):
        return Audio(rng), [torch.randn(int(rng.integers(1, 3)), 1, int(rng.integers(80, 300)))], ["y", "spread", "state"]
    if rng.integers(2):
        config = tf.WhisperConfig(d_model=24, encoder_layers=2, encoder_attention_heads=2, encoder_ffn_dim=40, decoder_layers=1,
                                  num_mel_bins=20, max_source_positions=30, vocab_size=60, pad_token_id=0, bos_token_id=1,
                                  eos_token_id=2, decoder_start_token_id=3)
        model = tf.WhisperModel._from_config(config).encoder
        return Wrapped(model, ["input_features"], ["last_hidden_state"]), [torch.randn(2, 20, 60)], ["hidden"]
    config = tf.Wav2Vec2Config(hidden_size=24, num_hidden_layers=2, num_attention_heads=2, intermediate_size=40, conv_dim=[8] * 3,
                               conv_kernel=[10, 3, 2], conv_stride=[5, 2, 2], num_conv_pos_embeddings=8,
                               num_conv_pos_embedding_groups=2, feat_extract_norm=pick(rng, "group", "layer"),
                               do_stable_layer_norm=bool(rng.integers(2)))
    return Wrapped(tf.Wav2Vec2Model._from_config(config), ["input_values"], ["last_hidden_state"]), [torch.randn(2, 900)], ["hidden"]


def moves(rng):
    class Moves(nn.Module):
        def forward(self, x, i):
            top, where = x.topk(3, dim=-1, largest=bool(rng.integers(2)))
            y = torch.where(x > 0.2, x, x.exp() * 0.1).clamp(-1, 2)
            return (y, x.cumsum(1), top, where, torch.gather(x, 1, i), torch.einsum("bij,bkj->bik", x, y),
                    x.std(-1, keepdim=True), F.pad(x, (1, 2, 0, 1), mode=pick(rng, "constant", "reflect", "replicate")),
                    x.flip(1), F.normalize(x, dim=-1), x.pow(3) + torch.floor(x) + torch.round(x * 3) - torch.remainder(x, 0.7),
                    (x @ y.transpose(1, 2)).tril(), x.roll(2, 1), x.amax(1), x.softmax(1), x.log_softmax(-1), x.sort(-1)[0],
                    x.unfold(1, 2, 1), torch.logsumexp(x, -1), x.prod(-1), x.mean(-1), x.scatter(1, i, y[:, :3]),
                    torch.stack(x.chunk(2, -1)), x.sign())
    x = torch.from_numpy(rng.standard_normal((2, 5, 6)).astype(np.float32))
    return Moves(), [x, torch.from_numpy(rng.integers(0, 5, (2, 3, 6)))], [f"y{i}" for i in range(24)]


def keras(rng, path):
    """Channels last around each convolution, normalization and activations in small operators, as tf2onnx writes."""
    f = lambda *s: (0.4 * rng.standard_normal(s)).astype(np.float32)
    weights, nodes, x, n = {}, [], "x", 3

    def add(op, inputs, **attributes):
        name = f"v{len(nodes)}"
        nodes.append(helper.make_node(op, inputs, [name], name=f"n{len(nodes)}", **attributes))
        return name

    def weight(v):
        name = f"w{len(weights)}"
        weights[name] = np.asarray(v)
        return name

    for _ in range(rng.integers(2, 5)):
        m, k = int(rng.integers(4, 12)), pick(rng, 1, 3)
        depthwise = bool(rng.integers(3) == 0)
        m = n if depthwise else m
        t = add("Transpose", [x], perm=[0, 3, 1, 2])
        w = weight(f(m, 1 if depthwise else n, k, k))
        y = add("Conv", [t, w], auto_pad=pick(rng, "SAME_UPPER", "SAME_LOWER", "VALID"), group=n if depthwise else 1,
                strides=[pick(rng, 1, 2)] * 2)
        y = add("Transpose", [y], perm=[0, 2, 3, 1])
        y = add("Add", [y, weight(f(m))])
        y = add("Mul", [add("Sub", [y, weight(f(m))]), weight(np.abs(f(m)) + 0.3)])
        kind = pick(rng, "relu6", "swish", "gelu", "hard", "leaky", "selu", "none")
        if kind == "relu6":
            y = add("Min", [add("Relu", [y]), weight(np.float32(6))])
        elif kind == "swish":
            y = add("Mul", [add("Sigmoid", [y]), y])
        elif kind == "gelu":
            e = add("Erf", [add("Div", [y, weight(np.float32(2 ** 0.5))])])
            y = add("Mul", [add("Mul", [y, add("Add", [e, weight(np.float32(1))])]), weight(np.float32(0.5))])
        elif kind == "hard":
            s = add("Clip", [add("Add", [y, weight(np.float32(3))]), weight(np.float32(0)), weight(np.float32(6))])
            y = add("Mul", [y, add("Mul", [s, weight(np.float32(1 / 6))])])
        elif kind == "leaky":
            y = add("LeakyRelu", [y], alpha=0.2)
        elif kind == "selu":
            y = add("Selu", [y])
        x, n = y, m
    pooled = add("ReduceMean", [x], axes=[1, 2], keepdims=0)
    flat = add("Reshape", [pooled, weight(np.array([-1, n], np.int64))])
    y = add("Add", [add("MatMul", [flat, weight(f(n, 9))]), weight(f(9))])
    top = add("ReduceMax", [y], axes=[-1], keepdims=1)
    e = add("Exp", [add("Sub", [y, top])])
    y = add("Div", [e, add("ReduceSum", [e, weight(np.array([-1], np.int64))], keepdims=1)])
    graph = helper.make_graph(
        nodes, "keras", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["b", None, None, 3])],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in (x, y)],
        [numpy_helper.from_array(v, n) for n, v in weights.items()])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)
    return {"x": f(2, int(rng.integers(12, 30)), int(rng.integers(12, 30)), 3)}


class Reader(CalibrationDataReader):
    def __init__(self, feeds):
        self.left = iter([feeds] * 2)

    def get_next(self):
        return next(self.left, None)


def make(rng, folder, number):
    """The file, its inputs and whether it has codes."""
    path = folder / f"{number}.onnx"
    kind = pick(rng, cnn, cnn, text, text, vision, vision, decoder, decoder, audio, moves, keras)
    label = kind.__name__
    if kind is keras:
        feeds = keras(rng, path)
    else:
        model, inputs, outputs = kind(rng)
        model = model.eval()
        inner = getattr(model, "model", model)
        label += f" {type(inner).__name__}"
        exporter = pick(rng, "script", "dynamo")
        names = [f"in{i}" for i in range(len(inputs))]
        how = dict(input_names=names, output_names=outputs, dynamo=exporter == "dynamo")
        if exporter == "script":
            how["opset_version"] = pick(rng, 14, 17, 18)
        else:
            how |= dict(verbose=False, external_data=False)
        label += f" {exporter}"
        torch.onnx.export(model, tuple(inputs), str(path), **how)
        kept = {i.name for i in onnx.load(path).graph.input}
        feeds = {n: t.numpy() for n, t in zip(names, inputs) if n in kept}
    codes = pick(rng, None, None, None, "qdq", "qop", "dynamic")
    if codes and kind is not moves:
        to = folder / f"{number}q.onnx"
        if codes == "dynamic":
            quantize_dynamic(path, to, weight_type=pick(rng, QuantType.QInt8, QuantType.QUInt8))
        else:
            form = QuantFormat.QDQ if codes == "qdq" else QuantFormat.QOperator
            quantize_static(path, to, Reader(feeds), quant_format=form, per_channel=bool(rng.integers(2)),
                            activation_type=pick(rng, QuantType.QInt8, QuantType.QUInt8), weight_type=QuantType.QInt8)
        path, label = to, f"{label} {codes}"
    return path, feeds, label, bool(codes)


def reference(path, feeds, codes):
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    if codes:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    run = ort.InferenceSession(str(path), options, ["CPUExecutionProvider"])
    return dict(zip([o.name for o in run.get_outputs()], run.run(None, feeds)))


def badness(got, want):
    if got.shape != want.shape or got.dtype != want.dtype:
        return float("inf")
    if got.dtype.kind != "f":
        return float((got != want).mean()) if got.size else 0.0
    got, want = got.astype(np.float64), want.astype(np.float64)
    same = np.isnan(got) == np.isnan(want)
    top = np.abs(want[np.isfinite(want)]).max(initial=1e-20)
    off = np.where((got == want) | np.isnan(want), 0, np.abs(got - want))
    return float("inf") if not same.all() else float(off.max(initial=0) / top)


def main():
    program, count, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    done = collections.Counter()
    keep = Path(sys.argv[4]) if len(sys.argv) > 4 else None
    folder = keep or Path(tempfile.mkdtemp())
    folder.mkdir(exist_ok=True, parents=True)
    for number in range(seed, seed + count):
        rng = np.random.default_rng(number)
        torch.manual_seed(number)
        try:
            with contextlib.redirect_stdout(io.StringIO()):  # the exporter prints graphs that it cannot export
                path, feeds, label, codes = make(rng, folder, number)
            want = reference(path, feeds, codes)
        except Exception as e:
            done["not exported"] += 1
            print(number, "not exported:", type(e).__name__, str(e).split("\n")[0][:100], flush=True)
            continue
        np.savez(folder / "in.npz", **feeds)
        out = folder / "out.npz"
        out.unlink(missing_ok=True)
        run = subprocess.run(
            [program, "forward", "--model", path, "--inputs", folder / "in.npz", "--output", out, "--threads", "1"],
            capture_output=True, text=True)
        if run.returncode:
            done["failed"] += 1
            print(number, label, "FAILED:", run.stderr.strip()[-300:], flush=True)
            continue
        got = dict(np.load(out))
        worst = max((badness(got[n], w), n) for n, w in want.items() if n in got)
        limit = CODES if codes else LIMIT
        done["differs" if worst[0] > limit else "equal"] += 1
        if worst[0] > limit:
            print(number, label, f"differs by {worst[0]:.2g} in {worst[1]} of {len(want)}", flush=True)
    print(dict(done))


if __name__ == "__main__":
    main()
