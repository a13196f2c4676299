"""Single operations as PyTorch and transformers compute them.

Writes jets/JET.CASE.npz with the inputs `in0`, `in1`, ... and outputs `out0`, ... in the order of
the jet's definition, and `attrs`, its attributes as the bytes of a JSON object. Numbers with a
point are floats, others integers. Everything is float32 as PyTorch's CPU gives it.

rope_frequencies/CASE.npz has in `attrs` the parameters of a rope (transformers' names and
`head_dim`), in `out0` the frequencies and in `out1` the factor on cosine and sine.
"""

import json
import zlib
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.gpt_oss.modeling_gpt_oss import eager_attention_forward as sink_attention
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb
from transformers.activations import ACT2FN

HERE = Path(__file__).parent
OUT = HERE / "jets"
FREQUENCIES = HERE / "rope_frequencies"


class Source:
    """Random inputs that depend on the case's name only."""

    def __init__(self, name):
        self.rng = np.random.default_rng(zlib.crc32(name.encode()))

    def normal(self, *shape, std=1.0):
        return torch.from_numpy(np.asarray(self.rng.standard_normal(shape) * std, dtype=np.float32))

    def ints(self, limit, *shape):
        return torch.from_numpy(self.rng.integers(0, limit, shape).astype(np.int32))


def save(folder, name, inputs, attrs, outputs):
    arrays = {f"in{i}": value.numpy() for i, value in enumerate(inputs)}
    arrays["attrs"] = np.frombuffer(json.dumps(attrs).encode(), dtype=np.uint8)
    arrays |= {f"out{i}": value.numpy() for i, value in enumerate(outputs)}
    np.savez(folder / f"{name}.npz", **arrays)


def case(jet, name, make, reference, attrs=None):
    """`make(source)` gives the inputs, `reference(*inputs)` the output or outputs."""
    inputs = make(Source(f"{jet}.{name}"))
    inputs = list(inputs) if isinstance(inputs, (tuple, list)) else [inputs]
    with torch.no_grad():
        outputs = reference(*inputs)
    outputs = list(outputs) if isinstance(outputs, (tuple, list)) else [outputs]
    save(OUT, f"{jet}.{name}", inputs, attrs or {}, [value.contiguous() for value in outputs])


EDGES = torch.tensor(
    [0.0, -0.0, 1e-30, -1e-30, 1e-8, -1e-8, 0.3, -0.3, 0.75, -0.75, 1.0, -1.0, 2.5, -2.5, 5.9, -5.9,
     10.0, -10.0, 30.0, -30.0, 87.0, -87.0, 89.0, -89.0, 1e4, -1e4, 1e30, -1e30, float("inf")])


def normalization():
    for name, shape, eps, std in [("row", (1, 61), 1e-5, 1.0), ("rows", (7, 96), 1e-6, 1.0),
                                  ("heads", (3, 5, 24), 1e-6, 1.0), ("large", (3, 77), 1e-5, 1e5),
                                  ("small", (3, 77), 1e-6, 1e-4), ("one", (4, 1), 1e-5, 1.0)]:
        width = shape[-1:]
        case("rmsnorm", name, lambda s: (s.normal(*shape, std=std), s.normal(*width)),
             lambda x, w: F.rms_norm(x, width, w, eps), {"eps": eps})
        case("layernorm", name,
             lambda s: (s.normal(*shape, std=std) + std, s.normal(*width), s.normal(*width)),
             lambda x, w, b: F.layer_norm(x, width, w, b, eps), {"eps": eps})
    zeros = torch.zeros(2, 33)
    case("rmsnorm", "bare", lambda s: s.normal(3, 40), lambda x: F.rms_norm(x, (40,), None, 1e-5),
         {"eps": 1e-5})
    case("rmsnorm", "zeros", lambda s: (zeros, s.normal(33)),
         lambda x, w: F.rms_norm(x, (33,), w, 1e-5), {"eps": 1e-5})
    case("layernorm", "no_bias", lambda s: (s.normal(3, 40), s.normal(40)),
         lambda x, w: F.layer_norm(x, (40,), w, None, 1e-5), {"eps": 1e-5})
    case("layernorm", "constant", lambda s: (zeros + 3.0, s.normal(33), s.normal(33)),
         lambda x, w, b: F.layer_norm(x, (33,), w, b, 1e-5), {"eps": 1e-5})


def activations():
    functions = {
        "sigmoid": [("", torch.sigmoid, {})],
        "tanh": [("", torch.tanh, {})],
        "relu": [("", F.relu, {})],
        "silu": [("", F.silu, {})],
        "gelu": [
            ("none_", F.gelu, {"approximate": "none"}),
            ("tanh_", lambda x: F.gelu(x, approximate="tanh"), {"approximate": "tanh"}),
            ("quick_", ACT2FN["quick_gelu"], {"approximate": "quick"}),
        ],
    }
    for jet, variants in functions.items():
        for prefix, function, attrs in variants:
            case(jet, f"{prefix}normal", lambda s: s.normal(5, 41, std=2.0), function, attrs)
            case(jet, f"{prefix}edges", lambda s: EDGES[:-1].clone(), function, attrs)
    case("silu", "infinity", lambda s: EDGES[-1:].clone(), F.silu)

    def pair(s):
        return s.normal(4, 53, std=2.0), s.normal(4, 53)

    case("swiglu", "normal", pair, lambda g, u: F.silu(g) * u)
    case("swiglu", "large", lambda s: (s.normal(2, 19, std=100.0), s.normal(2, 19, std=100.0)),
         lambda g, u: F.silu(g) * u)
    for approximate in ["none", "tanh"]:
        case("geglu", approximate, pair, lambda g, u: F.gelu(g, approximate=approximate) * u,
             {"approximate": approximate})
    case("geglu", "quick", pair, lambda g, u: ACT2FN["quick_gelu"](g) * u, {"approximate": "quick"})

    for name, shape, axis in [("last", (3, 29), 1), ("middle", (2, 7, 5), 1), ("first", (6, 3), 0),
                              ("one", (4, 1), 1)]:
        case("softmax", name, lambda s: s.normal(*shape, std=3.0), lambda x: F.softmax(x, axis),
             {"axis": axis})
    masked = torch.tensor([[1.0, -float("inf"), 2.0, -float("inf")], [-float("inf")] * 3 + [0.5]])
    case("softmax", "masked", lambda s: masked, lambda x: F.softmax(x, 1), {"axis": 1})
    case("softmax", "large", lambda s: s.normal(3, 17, std=1e4), lambda x: F.softmax(x, 1),
         {"axis": 1})


def arithmetic():
    for jet, function in [("add", torch.add), ("mul", torch.mul), ("sub", torch.sub)]:
        for name, left, right in [("same", (3, 37), (3, 37)), ("row", (4, 21), (21,)),
                                  ("column", (5, 13), (5, 1)), ("scalar", (3, 7), ()),
                                  ("both", (4, 1, 6), (3, 1)), ("left", (5,), (2, 3, 5))]:
            case(jet, name, lambda s: (s.normal(*left), s.normal(*right)), function)
    case("clamp", "both", lambda s: torch.cat([s.normal(40, std=3.0), EDGES]),
         lambda x: torch.clamp(x, -1.5, 2.25), {"min": -1.5, "max": 2.25})


def layout():
    case("concat", "first", lambda s: (s.normal(2, 5), s.normal(3, 5), s.normal(1, 5)),
         lambda *parts: torch.cat(parts, 0), {"axis": 0})
    case("concat", "last", lambda s: (s.normal(2, 3, 4), s.normal(2, 3, 1)),
         lambda *parts: torch.cat(parts, 2), {"axis": 2})
    case("split", "last", lambda s: s.normal(3, 11), lambda x: torch.split(x, [4, 1, 6], 1),
         {"axis": 1, "sizes": [4, 1, 6]})
    case("split", "first", lambda s: s.normal(6, 5), lambda x: torch.split(x, [2, 4], 0),
         {"axis": 0, "sizes": [2, 4]})
    case("transpose", "matrix", lambda s: s.normal(5, 7), lambda x: x.mT)
    case("transpose", "batch", lambda s: s.normal(3, 2, 5, 4), lambda x: x.mT)
    case("permute", "four", lambda s: s.normal(2, 3, 4, 5), lambda x: x.permute(2, 0, 3, 1),
         {"perm": [2, 0, 3, 1]})
    case("reshape", "merge", lambda s: s.normal(3, 4, 5), lambda x: x.reshape(12, 5),
         {"shape": [12, 5]})


def products():
    for name, shape, outputs in [("vector", (1, 67), 43), ("rows", (9, 33), 21), ("batch", (2, 3, 17), 5),
                                 ("wide", (2, 515), 7), ("one", (1, 1), 1)]:
        inner = shape[-1]
        case("linear", name, lambda s: (s.normal(*shape), s.normal(outputs, inner)), F.linear)
        case("linear", f"{name}_bias",
             lambda s: (s.normal(*shape), s.normal(outputs, inner), s.normal(outputs)), F.linear)
    for name, left, right in [("matrix", (5, 19), (19, 7)), ("batch", (3, 4, 9), (3, 9, 5)),
                              ("broadcast", (2, 1, 3, 11), (4, 11, 2))]:
        case("matmul", name, lambda s: (s.normal(*left), s.normal(*right)), torch.matmul)
    case("embedding", "ids", lambda s: (s.normal(13, 9), s.ints(13, 7)),
         lambda table, ids: F.embedding(ids.long(), table))
    case("embedding", "batch", lambda s: (s.normal(5, 33), s.ints(5, 2, 3)),
         lambda table, ids: F.embedding(ids.long(), table))

    def put(pool, slots, new):
        return pool.index_copy(0, slots.long(), new)

    case("kv_cache", "scattered",
         lambda s: (s.normal(11, 2, 6), torch.tensor([9, 0, 4], dtype=torch.int32), s.normal(3, 2, 6)), put)


def convolutions():
    for name, x, w, strides, pads, dilations, groups in [
            ("one", (2, 3, 19), (5, 3, 4), [2], [1], [1], 1),
            ("plain", (1, 3, 8, 9), (6, 3, 3, 3), [1, 1], [1, 1], [1, 1], 1),
            ("strides", (2, 4, 9, 12), (5, 4, 3, 5), [2, 3], [1, 2], [1, 1], 1),
            ("groups", (1, 6, 7, 8), (9, 2, 2, 3), [1, 1], [0, 1], [2, 1], 3),
            ("depthwise", (1, 7, 10, 6), (7, 1, 3, 3), [1, 1], [1, 1], [1, 1], 7),
            ("three", (1, 2, 5, 6, 4), (3, 2, 3, 2, 2), [1, 2, 1], [1, 0, 1], [1, 1, 1], 1)]:
        apply = [F.conv1d, F.conv2d, F.conv3d][len(strides) - 1]
        attrs = {"strides": strides, "pads": pads + pads, "dilations": dilations, "groups": groups}
        make = lambda s: (s.normal(*x), s.normal(*w), s.normal(w[0]))
        conv = lambda x, w, b: apply(x, w, b, strides, pads, dilations, groups)
        case("conv", name, make, conv, attrs)
        if name == "plain":
            for activation, f in [("silu", F.silu), ("relu", F.relu), ("sigmoid", torch.sigmoid),
                                  ("tanh", torch.tanh), ("gelu", F.gelu),
                                  ("gelu_tanh", lambda x: F.gelu(x, approximate="tanh"))]:
                case("conv_activation", activation, make, lambda x, w, b: f(conv(x, w, b)),
                     attrs | {"activation": activation})
    for name, x, w, strides, pads, extra, dilations, groups in [
            ("one", (1, 6, 13), (6, 4, 8), [4], [2], [1], [1], 1),
            ("plain", (2, 3, 5, 6), (3, 4, 3, 3), [2, 2], [1, 1], [1, 0], [1, 1], 1),
            ("groups", (1, 4, 6, 5), (4, 3, 2, 3), [1, 3], [0, 1], [0, 2], [2, 1], 2),
            ("three", (1, 2, 3, 4, 3), (2, 2, 3, 2, 2), [1, 2, 2], [1, 0, 0], [0, 1, 0], [1, 1, 1], 1)]:
        apply = [F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d][len(strides) - 1]
        case("conv_transpose", name,
             lambda s: (s.normal(*x), s.normal(*w), s.normal(w[1] * groups)),
             lambda x, w, b: apply(x, w, b, strides, pads, extra, groups, dilations),
             {"strides": strides, "pads": pads + pads, "dilations": dilations, "groups": groups,
              "output_padding": extra})


def pools():
    for name, x, kernel, strides, pads, dilations in [
            ("one", (2, 3, 17), [4], [3], [1], [1]),
            ("plain", (1, 3, 9, 10), [3, 2], [2, 2], [1, 0], [1, 1]),
            ("dilated", (1, 2, 11, 12), [3, 3], [1, 2], [1, 1], [2, 3]),
            ("three", (1, 2, 5, 6, 7), [2, 3, 2], [1, 2, 2], [1, 1, 0], [1, 1, 1])]:
        n = len(kernel)
        attrs = {"kernel": kernel, "strides": strides, "pads": pads + pads, "dilations": dilations}
        most = [F.max_pool1d, F.max_pool2d, F.max_pool3d][n - 1]
        case("max_pool", name, lambda s: s.normal(*x),
             lambda x: most(x, kernel, strides, pads, dilations), attrs)
        if dilations != [1] * n:
            continue
        mean = [F.avg_pool1d, F.avg_pool2d, F.avg_pool3d][n - 1]
        for include in [False, True]:
            case("average_pool", f"{name}_{include}".lower(), lambda s: s.normal(*x),
                 lambda x: mean(x, kernel, strides, pads, False, include),
                 attrs | {"extra": [0] * n, "include_pad": include})
    case("average_pool", "partial", lambda s: s.normal(1, 2, 4, 4),
         lambda x: F.avg_pool2d(x, 3, 2, 0, True),
         {"kernel": [3, 3], "strides": [2, 2], "pads": [0] * 4, "dilations": [1, 1], "extra": [1, 1],
          "include_pad": True})


def resizes():
    for name, x, sizes in [("up", (1, 3, 5, 6), [9, 16]), ("down", (2, 2, 11, 9), [4, 5])]:
        common = {"axes": [2, 3], "sizes": sizes, "rounding": "floor", "cubic": -0.75}
        make = lambda s: s.normal(*x)
        case("resize", f"nearest_{name}", make, lambda x: F.interpolate(x, sizes),
             common | {"mode": "nearest", "coordinates": "asymmetric"})
        for mode in ["linear", "cubic"]:
            for aligned, coordinates in [(False, "half_pixel"), (True, "align_corners")]:
                case("resize", f"{mode}_{coordinates}_{name}", make,
                     lambda x: F.interpolate(x, sizes, mode=f"bi{mode}", align_corners=aligned),
                     common | {"mode": mode, "coordinates": coordinates})


def rotate(x, positions, frequencies, style, scale):
    """transformers' rotation for `half`; for `pairs` multiplication of complex numbers."""
    angles = positions.float()[:, None] * frequencies
    turned = 2 * frequencies.shape[0]
    head, rest = x[..., :turned], x[..., turned:]
    if style == "half":
        both = torch.cat([angles, angles], -1)[None]
        cos, sin = both.cos() * scale, both.sin() * scale
        heads = head.transpose(0, 1)[None]  # [1, H, T, turned]
        result = apply_rotary_pos_emb(heads, heads, cos, sin)[0][0].transpose(0, 1)
    else:
        numbers = torch.view_as_complex(head.reshape(*head.shape[:-1], -1, 2).contiguous())
        result = torch.view_as_real(numbers * torch.polar(torch.full_like(angles, scale), angles)[:, None])
        result = result.flatten(-2)
    return torch.cat([result, rest], -1)


ROPES = {
    "default": (64, {"rope_type": "default", "rope_theta": 10000.0}),
    "base_1000000": (128, {"rope_type": "default", "rope_theta": 1000000.0}),
    "linear": (24, {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}),
    "llama3": (64, {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 32.0,
                    "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                    "original_max_position_embeddings": 8192}),
    "yarn": (128, {"rope_type": "yarn", "rope_theta": 1000000.0, "factor": 4.0,
                   "original_max_position_embeddings": 32768}),
    "yarn_betas": (64, {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 16.0,
                        "beta_fast": 24.0, "beta_slow": 2.0,
                        "original_max_position_embeddings": 4096}),
    "yarn_untruncated": (64, {"rope_type": "yarn", "rope_theta": 150000.0, "factor": 32.0,
                              "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
                              "original_max_position_embeddings": 4096}),
    "yarn_mscale": (64, {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 40.0, "mscale": 0.707,
                         "mscale_all_dim": 0.707, "original_max_position_embeddings": 4096}),
    "yarn_mscale_only": (64, {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 40.0, "mscale": 1.0,
                              "mscale_all_dim": 0.5, "original_max_position_embeddings": 4096}),
}


def frequencies_of(width, parameters):
    original = parameters.get("original_max_position_embeddings", 4096)
    config = LlamaConfig(
        hidden_size=2 * width, num_attention_heads=2, head_dim=width, rope_parameters=dict(parameters),
        max_position_embeddings=int(original * parameters.get("factor", 1.0)))
    if parameters["rope_type"] == "default":
        from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
        return LlamaRotaryEmbedding.compute_default_rope_parameters(config, device="cpu")
    return ROPE_INIT_FUNCTIONS[parameters["rope_type"]](config, device="cpu")


def ropes():
    for name, (width, parameters) in ROPES.items():
        frequencies, factor = frequencies_of(width, parameters)
        save(FREQUENCIES, name, [], parameters | {"head_dim": width},
             [frequencies, torch.tensor(factor, dtype=torch.float32)])
        for style in ["half", "pairs"]:
            attrs = {"style": style, "scale": float(factor)}
            case("rope", f"{style}_{name}",
                 lambda s: (s.normal(6, 2, width), torch.tensor([0, 1, 2, 30, 77, 300], dtype=torch.int32),
                            frequencies.clone()),
                 lambda x, p, f: rotate(x, p, f, style, float(factor)), attrs)
    partial = frequencies_of(20, ROPES["default"][1])[0]
    for style in ["half", "pairs"]:
        case("rope", f"{style}_partial",
             lambda s: (s.normal(4, 3, 34), torch.tensor([3, 4, 5, 6], dtype=torch.int32), partial.clone()),
             lambda x, p, f: rotate(x, p, f, style, 1.0), {"style": style, "scale": 1.0})


def visible(queries, keys, window):
    """Query s stands at keys - queries + s."""
    at = torch.arange(keys - queries, keys)[:, None]
    key = torch.arange(keys)[None]
    seen = key <= at
    return seen & (key > at - window) if window else seen


def capped_attention(q, k, v, mask, scale, softcap):
    """As gemma2 does: cap the scaled scores, then mask."""
    repeat = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(repeat, 1), v.repeat_interleave(repeat, 1)
    scores = softcap * torch.tanh(torch.matmul(q, k.mT) * scale / softcap)
    if mask is not None:
        scores = scores.masked_fill(~mask, -float("inf"))
    return torch.matmul(F.softmax(scores, -1), v)


def attention():
    rows = [  # name, batch, heads, key heads, queries, keys, width, value width, scale, causal, window, softcap
        ("bidirectional", 2, 3, 3, 7, 7, 24, 24, 0.2, False, 0, 0.0),
        ("cross", 1, 2, 2, 3, 11, 20, 20, 0.25, False, 0, 0.0),
        ("causal", 2, 4, 2, 13, 13, 18, 18, 0.25, True, 0, 0.0),
        ("grouped", 1, 7, 1, 6, 6, 8, 8, 0.35355339059327373, True, 0, 0.0),
        ("past", 1, 6, 2, 3, 21, 12, 12, 0.3, True, 0, 0.0),
        ("one_query", 1, 4, 2, 1, 33, 20, 20, 0.22, True, 0, 0.0),
        ("window", 1, 2, 1, 21, 21, 14, 14, 0.26, True, 5, 0.0),
        ("window_past", 1, 2, 2, 4, 19, 14, 14, 0.26, True, 8, 0.0),
        ("window_one", 1, 2, 2, 9, 9, 14, 14, 0.26, True, 1, 0.0),
        ("softcap", 1, 4, 2, 11, 11, 16, 16, 0.8, True, 0, 5.0),
        ("softcap_window", 1, 2, 2, 17, 17, 16, 16, 0.8, True, 6, 2.0),
        ("value_width", 1, 2, 2, 5, 9, 24, 10, 0.2, True, 0, 0.0),
        ("sharp", 1, 2, 2, 9, 9, 16, 16, 8.0, True, 0, 0.0),
    ]
    for name, batch, heads, groups, queries, keys, width, values, scale, causal, window, cap in rows:
        mask = visible(queries, keys, window) if causal else None

        def reference(q, k, v):
            if cap:
                return capped_attention(q, k, v, mask, scale, cap)
            return F.scaled_dot_product_attention(q, k, v, mask, scale=scale, enable_gqa=True)

        case("sdpa", name,
             lambda s: (s.normal(batch, heads, queries, width), s.normal(batch, groups, keys, width),
                        s.normal(batch, groups, keys, values)),
             reference, {"scale": scale, "causal": causal, "window": window, "softcap": cap})
    attrs = {"scale": 0.25, "causal": False, "window": 0, "softcap": 0.0}

    def masked(q, k, v, mask):
        return F.scaled_dot_product_attention(q, k, v, mask, scale=0.25)

    def heads(s, mask):
        return s.normal(2, 2, 5, 12), s.normal(2, 2, 6, 12), s.normal(2, 2, 6, 12), mask

    case("sdpa", "float_mask", lambda s: heads(s, s.normal(5, 6)), masked, attrs)
    padding = torch.tensor([[1, 1, 0, 1, 0, 1], [1, 1, 1, 1, 0, 0]], dtype=torch.bool)
    case("sdpa", "bool_mask", lambda s: heads(s, padding[:, None, None]), masked, attrs)


def paged_attention():
    """Two sequences in shuffled blocks of one pool, one of them in the middle of its prefill."""
    block, groups, n_heads, width = 4, 2, 6, 10
    tables = torch.tensor([[5, 0, 7], [2, 6, 1]], dtype=torch.int32)
    spans = [(0, 9, 10), (1, 3, 8)]  # row, first and last + 1 position of the queries
    rows = torch.tensor([r for r, a, b in spans for _ in range(a, b)], dtype=torch.int32)
    positions = torch.tensor([p for _, a, b in spans for p in range(a, b)], dtype=torch.int32)

    class Module:
        training = False
        num_key_value_groups = n_heads // groups
        sinks = None

    def reference(scale, window, cap):
        def run(q, keys, values, tables, rows, positions, sinks=None):
            out, start = [], 0
            for row, first, last in spans:
                place = torch.arange(last)
                slots = tables[row].long()[place // block] * block + place % block
                query = q[start : start + last - first].transpose(0, 1)[None]
                start += last - first
                k, v = (pool[slots].transpose(0, 1)[None] for pool in (keys, values))
                mask = visible(last - first, last, window)
                if sinks is not None:
                    module = Module()
                    module.sinks = sinks
                    hidden = torch.zeros(mask.shape).masked_fill(~mask, -float("inf"))
                    result = sink_attention(module, query, k, v, hidden[None, None], scale)[0][0]
                    out.append(result)
                    continue
                if cap:
                    result = capped_attention(query, k, v, mask, scale, cap)
                else:
                    result = F.scaled_dot_product_attention(query, k, v, mask, scale=scale, enable_gqa=True)
                out.append(result[0].transpose(0, 1))
            return torch.cat(out)
        return run

    for name, scale, window, cap, with_sinks in [
            ("plain", 0.3, 0, 0.0, False), ("window", 0.3, 3, 0.0, False), ("softcap", 1.0, 0, 4.0, False),
            ("sinks", 0.3, 0, 0.0, True), ("sinks_window", 0.3, 5, 0.0, True)]:
        def make(s):
            pools = s.normal(8 * block, groups, width), s.normal(8 * block, groups, width)
            given = (s.normal(len(rows), n_heads, width), *pools, tables, rows, positions)
            return given + ((s.normal(n_heads),) if with_sinks else ())
        case("sdpa_paged", name, make, reference(scale, window, cap),
             {"scale": scale, "window": window, "softcap": cap, "block": block})


def main():
    torch.set_num_threads(1)
    for folder in [OUT, FREQUENCIES]:
        folder.mkdir(exist_ok=True)
        for old in folder.glob("*.npz"):
            old.unlink()
    for part in [normalization, activations, arithmetic, layout, products, convolutions, pools, resizes, ropes,
                 attention, paged_attention]:
        part()


if __name__ == "__main__":
    main()
