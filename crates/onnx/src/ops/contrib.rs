//! The operators of `com.microsoft` that exporters and optimisers write.

use cyb_formats::onnx::Elem;
use cyb_ir::{Attrs, ValueId};
use cyb_jets::{GELU, LINEAR};
use cyb_tensor::DType;

use super::Rows;
use super::attention::{Attend, attend, heads, merged};
use super::conv::conv;
use super::elementwise::unary;
use super::integer::product_of_codes;
use super::matmul::product;
use super::normalization::{by_channel, layer_norm_last, rms_norm_last};
use super::rotary::rotate;
use super::shape::sizes;
use crate::context::{Context, Made, Outputs};
use crate::error::bad;
use crate::value::{Val, X, floats_tensor, to_ints};

pub(super) static ROWS: Rows = &[
    ("SkipLayerNormalization", |c| skip_norm(c, true)),
    ("SkipSimplifiedLayerNormalization", |c| skip_norm(c, false)),
    ("SimplifiedLayerNormalization", simplified_norm),
    ("Gelu", |c| gelu(c, "none")),
    ("BiasGelu", |c| gelu(c, "none")),
    ("FastGelu", |c| gelu(c, "tanh")),
    ("QuickGelu", |c| {
        let alpha = c.float("alpha", 1.702)?;
        unary(c, |c, x| {
            let scaled = c.b.scale(x, alpha)?;
            let s = c.sigmoid(scaled)?;
            Ok(c.b.mul(x, s)?)
        })
    }),
    ("FusedMatMul", fused_matmul),
    ("TransposeMatMul", fused_matmul),
    ("FusedGemm", fused_gemm),
    ("FusedConv", fused_conv),
    ("MatMulNBits", matmul_nbits),
    ("MultiHeadAttention", multi_head),
    ("GroupQueryAttention", group_query),
    ("RotaryEmbedding", rotary),
    ("DynamicQuantizeMatMul", dynamic_matmul),
    ("MatMulIntegerToFloat", integer_to_float),
];

/// Operators that files name in the default domain though the standard has none of them.
pub(super) static STRAY: Rows = &[("SimplifiedLayerNormalization", simplified_norm)];

fn skip_norm(c: &mut Context<'_>, centered: bool) -> Outputs {
    let (x, skip, scale) = (c.x(0)?, c.x(1)?, c.x(2)?);
    let beta = if centered { c.opt(3)? } else { None };
    let bias = c.opt(if centered { 4 } else { 3 })?;
    let eps = c.float("epsilon", 1e-5)?;
    let (a, b) = (c.wide(x.id)?, c.wide(skip.id)?);
    let mut sum = c.add(a, b)?;
    if let Some(bias) = bias {
        let bias = c.cast(bias.id, c.dtype(sum))?;
        sum = c.b.add(sum, bias)?;
    }
    let y = match centered {
        true => layer_norm_last(c, sum, scale.id, beta.map(|b| b.id), eps)?,
        false => rms_norm_last(c, sum, scale.id, eps)?,
    };
    let dtype = c.dtype(x.id);
    let (y, sum) = (c.cast(y, dtype)?, c.cast(sum, dtype)?);
    if c.wanted(1) || c.wanted(2) {
        return bad("outputs mean and inv_std_var are for training; export without them");
    }
    Ok(vec![
        Val::Value(X { id: y, elem: x.elem }),
        Val::None,
        Val::None,
        Val::Value(X { id: sum, elem: x.elem }),
    ])
}

fn simplified_norm(c: &mut Context<'_>) -> Outputs {
    let (x, scale) = (c.x(0)?, c.x(1)?);
    let eps = c.float("epsilon", 1e-5)?;
    let rank = c.rank(x.id);
    if c.axis(c.int("axis", -1)?, rank)? + 1 != rank {
        return bad("attribute axis must be the last one");
    }
    let wide = c.wide(x.id)?;
    let y = rms_norm_last(c, wide, scale.id, eps)?;
    let y = c.cast(y, c.dtype(x.id))?;
    c.one(y, x.elem)
}

fn gelu(c: &mut Context<'_>, form: &str) -> Outputs {
    let x = c.x(0)?;
    let bias = c.opt(1)?;
    let mut wide = c.wide(x.id)?;
    if let Some(bias) = bias {
        let bias = c.cast(bias.id, c.dtype(wide))?;
        wide = c.b.add(wide, bias)?;
    }
    let y = c.b.jet(&GELU, Attrs::new().with("approximate", form), &[wide])?;
    let y = c.cast(y, c.dtype(x.id))?;
    c.one(y, x.elem)
}

fn fused_matmul(c: &mut Context<'_>) -> Outputs {
    let (a, b) = (c.x(0)?, c.x(1)?);
    if c.flag("transBatchA", false)? || c.flag("transBatchB", false)? {
        return bad("transBatchA and transBatchB are not supported; export without fusions");
    }
    let turned = |c: &mut Context<'_>, x: ValueId, name: &str| -> Made {
        let x = c.wide(x)?;
        let rank = c.rank(x);
        if !c.flag(name, false)? || rank < 2 {
            return Ok(x);
        }
        let mut perm: Vec<usize> = (0..rank).collect();
        perm.swap(rank - 1, rank - 2);
        Ok(c.b.permute(x, &perm)?)
    };
    let (left, right) = (turned(c, a.id, "transA")?, turned(c, b.id, "transB")?);
    let y = product(c, left, right)?;
    let y = c.b.scale(y, c.float("alpha", 1.0)?)?;
    let y = c.cast(y, c.dtype(a.id))?;
    c.one(y, a.elem)
}

/// `Gemm` and an activation of its result.
fn fused_gemm(c: &mut Context<'_>) -> Outputs {
    let alpha = c.float("activation_alpha", 0.01)?;
    let made = super::matmul::gemm(c)?;
    let Some(Val::Value(y)) = made.first() else { return bad("gives no tensor") };
    let name = c.text("activation", "")?;
    let id = activated(c, y.id, &name, &[alpha])?;
    c.one(id, y.elem)
}

fn fused_conv(c: &mut Context<'_>) -> Outputs {
    let (x, w) = (c.x(0)?, c.x(1)?);
    let (bias, more) = (c.opt(2)?, c.opt(3)?);
    let mut y = conv(c, x.id, w.id)?;
    if let Some(bias) = bias {
        let rank = c.rank(y);
        let bias = by_channel(c, bias.id, rank)?;
        y = c.b.add(y, bias)?;
    }
    if let Some(more) = more {
        y = c.b.add(y, more.id)?;
    }
    let numbers = c.float_list("activation_params")?.unwrap_or_default();
    let name = c.text("activation", "")?;
    y = activated(c, y, &name, &numbers)?;
    c.one(y, x.elem)
}

/// The activation that a fused operator names, with its numbers.
fn activated(c: &mut Context<'_>, y: ValueId, name: &str, numbers: &[f64]) -> Made {
    match name {
        "" => Ok(y),
        "Relu" => c.relu(y),
        "Sigmoid" => c.sigmoid(y),
        "Tanh" => c.tanh(y),
        "LeakyRelu" => {
            let zero = c.scalar(y, 0.0)?;
            let small = c.b.scale(y, numbers.first().copied().unwrap_or(0.01))?;
            let below = c.b.lt(y, zero)?;
            Ok(c.b.select(below, small, y)?)
        }
        "Clip" => {
            let [low, high] = numbers[..] else { return bad("Clip takes two numbers") };
            let (low, high) = (c.scalar(y, low)?, c.scalar(y, high)?);
            let y = c.b.max(y, low)?;
            Ok(c.b.min(y, high)?)
        }
        other => bad(format!("activation {other:?} is unknown")),
    }
}

/// Codes of `bits` bits, the lowest first, from bytes.
fn unpack(bytes: &[i64], bits: usize, n: usize) -> Vec<f64> {
    let code = |i: usize| {
        let (mut value, at) = (0i64, i * bits);
        for bit in 0..bits {
            let byte = bytes.get((at + bit) / 8).copied().unwrap_or(0);
            value |= ((byte >> ((at + bit) % 8)) & 1) << bit;
        }
        value as f64
    };
    (0..n).map(code).collect()
}

/// Weights [N, K] of 2 to 8 bits in blocks along K, decoded.
fn matmul_nbits(c: &mut Context<'_>) -> Outputs {
    let a = c.x(0)?;
    let [k, n] = [c.int("K", 0)?, c.int("N", 0)?].map(|v| usize::try_from(v).unwrap_or(0));
    let bits = sizes(&[c.int("bits", 4)?])?[0];
    let block = sizes(&[c.int("block_size", 32)?])?[0];
    if k == 0 || n == 0 || block == 0 || !(2..=8).contains(&bits) {
        return bad("attributes K, N, bits or block_size make no sense");
    }
    let blocks = k.div_ceil(block);
    let (_, packed) = c.known(1)?;
    let per_block = (block * bits).div_ceil(8);
    let want = n.checked_mul(blocks).and_then(|r| r.checked_mul(per_block));
    if want != Some(packed.elems()) {
        return bad(format!("{} bytes do not hold {n} by {k} codes", packed.elems()));
    }
    let packed = to_ints(&packed)?;
    let scales = c.floats(2)?;
    if scales.len() != n * blocks {
        return bad(format!("{} scales do not fit {n} rows of {blocks} blocks", scales.len()));
    }
    let middle = f64::from(1u32 << (bits - 1));
    let zeros: Vec<f64> = if c.has(3) {
        let (_, given) = c.known(3)?;
        if given.dtype() == DType::U8 {
            let bytes = to_ints(&given)?;
            let row = (blocks * bits).div_ceil(8);
            if bytes.len() != n * row {
                return bad(format!("{} bytes of zero points do not fit", bytes.len()));
            }
            bytes.chunks_exact(row).flat_map(|r| unpack(r, bits, blocks)).collect()
        } else {
            c.floats(3)?
        }
    } else {
        vec![middle; n * blocks]
    };
    if zeros.len() != n * blocks {
        return bad(format!("{} zero points do not fit {n} rows of {blocks}", zeros.len()));
    }
    if c.has(4) {
        return bad("input g_idx is not supported; quantise without act-order");
    }
    let mut weights = Vec::with_capacity(n * k);
    for (row, bytes) in packed.chunks_exact(blocks * per_block).enumerate() {
        for (i, bytes) in bytes.chunks_exact(per_block).enumerate() {
            let at = row * blocks + i;
            let codes = unpack(bytes, bits, block.min(k - i * block));
            weights.extend(codes.into_iter().map(|code| (code - zeros[at]) * scales[at]));
        }
    }
    let weights = floats_tensor(DType::F32, vec![n, k], &weights)?;
    let weights = c.constant(&weights);
    let x = c.cast(a.id, DType::F32)?;
    let mut inputs = vec![x, weights];
    if let Some(bias) = c.opt(5)? {
        inputs.push(c.cast(bias.id, DType::F32)?);
    }
    let y = c.b.jet(&LINEAR, Attrs::new(), &inputs)?;
    let y = c.cast(y, c.dtype(a.id))?;
    c.one(y, a.elem)
}

/// Hides keys behind a mask: lengths [B], flags [B, L] or [B, S, L], as an addend to scores.
fn mask_bias(c: &mut Context<'_>, mask: ValueId, batch: usize, l: usize, filter: f64) -> Made {
    let dims = c.dims(mask)?;
    let keep = match dims[..] {
        [n] if n == batch => {
            let lengths = c.cast(mask, DType::I64)?;
            let lengths = c.reshape(lengths, &[batch, 1, 1, 1])?;
            let place = c.b.iota(l.into());
            c.b.lt(place, lengths)?
        }
        [b, n] => {
            let flags = c.cast(mask, DType::Bool)?;
            c.reshape(flags, &[b, 1, 1, n])?
        }
        [b, s, n] => {
            let flags = c.cast(mask, DType::Bool)?;
            c.reshape(flags, &[b, 1, s, n])?
        }
        _ => return bad(format!("a mask of {dims:?} is not supported")),
    };
    let (zero, hide) = (c.b.scalar(DType::F32, 0.0)?, c.b.scalar(DType::F32, filter)?);
    Ok(c.b.select(keep, zero, hide)?)
}

fn multi_head(c: &mut Context<'_>) -> Outputs {
    let q = c.x(0)?;
    let n = sizes(&[c.int("num_heads", 0)?])?[0];
    let (key, value, bias) = (c.opt(1)?, c.opt(2)?, c.opt(3)?);
    let (mask, addend) = (c.opt(4)?, c.opt(5)?);
    let (past_k, past_v) = (c.opt(6)?, c.opt(7)?);
    let (Some(key), Some(value)) = (key, value) else {
        return bad("packed queries, keys and values are not supported; export them apart");
    };
    let mut parts = Vec::new();
    let mut from = 0;
    for x in [q.id, key.id, value.id] {
        let mut x = c.cast(x, DType::F32)?;
        if let (Some(bias), 3) = (bias, c.rank(x)) {
            let width = c.dims(x)?[2];
            let own = c.b.slice(bias.id, 0, from, width)?;
            let own = c.cast(own, DType::F32)?;
            x = c.b.add(x, own)?;
            from += width;
        }
        parts.push(heads(c, x, n)?);
    }
    finish_heads(c, q, parts, [past_k, past_v], mask, addend, c.flag("unidirectional", false)?)
}

/// From heads to the output, with what came before and masks.
pub(super) fn finish_heads(
    c: &mut Context<'_>,
    q: X,
    parts: Vec<ValueId>,
    past: [Option<X>; 2],
    mask: Option<X>,
    addend: Option<X>,
    one_way: bool,
) -> Outputs {
    let (mut k, mut v) = (parts[1], parts[2]);
    if let [Some(past_k), Some(past_v)] = past {
        let (a, b) = (c.cast(past_k.id, DType::F32)?, c.cast(past_v.id, DType::F32)?);
        (k, v) = (c.b.concat(&[a, k], 2)?, c.b.concat(&[b, v], 2)?);
    }
    let (batch, s, l) = (c.dims(parts[0])?[0], c.dims(parts[0])?[2], c.dims(k)?[2]);
    let mut bias = None;
    let filter = c.float("mask_filter_value", -10000.0)?;
    if let Some(mask) = mask {
        bias = Some(mask_bias(c, mask.id, batch, l, filter)?);
    }
    if let Some(addend) = addend {
        let addend = c.cast(addend.id, DType::F32)?;
        bias = Some(match bias {
            Some(b) => c.add(b, addend)?,
            None => addend,
        });
    }
    if one_way {
        let before = c.indices(vec![], &[l as i64 - s as i64])?;
        let keep = super::attention::causal(c, s, l, before)?;
        let (zero, hide) =
            (c.b.scalar(DType::F32, 0.0)?, c.b.scalar(DType::F32, f64::NEG_INFINITY)?);
        let hide = c.b.select(keep, zero, hide)?;
        bias = Some(match bias {
            Some(b) => c.add(b, hide)?,
            None => hide,
        });
    }
    let scale = c.opt_float("scale")?.filter(|s| *s != 0.0);
    let y = attend(c, parts[0], k, v, &Attend { scale, softcap: 0.0, bias })?;
    let y = merged(c, y)?;
    let dtype = c.dtype(q.id);
    let mut outputs = Vec::new();
    for x in [y, k, v] {
        let x = c.cast(x, dtype)?;
        outputs.push(Val::Value(X { id: x, elem: q.elem }));
    }
    Ok(outputs)
}

/// Attention of decoders: grouped heads, a cache that grows, rotary embeddings inside.
fn group_query(c: &mut Context<'_>) -> Outputs {
    let q = c.x(0)?;
    let (key, value) = (c.opt(1)?, c.opt(2)?);
    let (past_k, past_v) = (c.opt(3)?, c.opt(4)?);
    let last = c.x(5)?;
    let (cos, sin, addend) = (c.opt(7)?, c.opt(8)?, c.opt(10)?);
    let h = sizes(&[c.int("num_heads", 0)?])?[0];
    let g = sizes(&[c.int("kv_num_heads", 0)?])?[0];
    if h == 0 || g == 0 || h % g != 0 {
        return bad(format!("{h} query heads do not share {g} key heads"));
    }
    let all = c.cast(q.id, DType::F32)?;
    let mut flat = vec![all];
    match (key, value) {
        (Some(key), Some(value)) => {
            flat.push(c.cast(key.id, DType::F32)?);
            flat.push(c.cast(value.id, DType::F32)?);
        }
        _ => {
            let width = c.dims(all)?[2];
            let d = width / (h + 2 * g);
            let cut = [(0, h * d), (h * d, g * d), ((h + g) * d, g * d)];
            flat.clear();
            for (from, width) in cut {
                flat.push(c.b.slice(all, 2, from, width)?);
            }
        }
    }
    let [batch, s, _] = c.dims(flat[0])?[..] else { return bad("queries need three axes") };
    // Position of the first new token of each sequence: its last position, less what is new.
    let last = c.cast(last.id, DType::I64)?;
    let last = c.reshape(last, &[batch])?;
    let first = c.b.offset(last, 1.0 - s as f64)?;
    let zero = c.b.scalar(DType::I64, 0.0)?;
    let first = c.b.max(first, zero)?;
    let first = c.reshape(first, &[batch, 1])?;
    let step = c.b.iota(s.into());
    let positions = c.b.add(first, step)?; // [B, S]
    let mut parts = Vec::new();
    for (i, x) in flat.into_iter().enumerate() {
        let n = if i == 0 { h } else { g };
        let dims = c.dims(x)?;
        if n == 0 || dims[2] % n != 0 {
            return bad(format!("{dims:?} does not make {n} heads"));
        }
        let mut x = c.reshape(x, &[batch, s, n, dims[2] / n])?;
        if i < 2 && c.flag("do_rotary", false)? {
            let (Some(cos), Some(sin)) = (cos, sin) else {
                return bad("do_rotary needs cos_cache and sin_cache");
            };
            let mut angles = Vec::new();
            for cache in [cos.id, sin.id] {
                let cache = c.cast(cache, DType::F32)?;
                let cache = c.b.gather(cache, 0, positions)?;
                angles.push(c.b.unsqueeze(cache, 2)?);
            }
            let interleaved = c.flag("rotary_interleaved", false)?;
            x = rotate(c, x, angles[0], angles[1], interleaved)?;
        }
        parts.push(c.b.permute(x, &[0, 2, 1, 3])?);
    }
    let (mut k, mut v) = (parts[1], parts[2]);
    if let (Some(past_k), Some(past_v)) = (past_k, past_v) {
        let (a, b) = (c.cast(past_k.id, DType::F32)?, c.cast(past_v.id, DType::F32)?);
        (k, v) = (c.b.concat(&[a, k], 2)?, c.b.concat(&[b, v], 2)?);
    }
    let l = c.dims(k)?[2];
    // Query i sees the keys up to its own position.
    let row = c.reshape(positions, &[batch, 1, s, 1])?;
    let column = c.b.iota(l.into());
    let mut keep = c.le(column, row)?;
    let window = c.int("local_window_size", -1)?;
    if window > 0 {
        let edge = c.b.offset(column, window as f64)?;
        let near = c.b.lt(row, edge)?;
        keep = c.b.mul(keep, near)?;
    }
    let (zero, hide) = (c.b.scalar(DType::F32, 0.0)?, c.b.scalar(DType::F32, f64::NEG_INFINITY)?);
    let mut bias = c.b.select(keep, zero, hide)?;
    if let Some(addend) = addend {
        let addend = c.cast(addend.id, DType::F32)?;
        bias = c.add(bias, addend)?;
    }
    let how = Attend {
        scale: c.opt_float("scale")?.filter(|s| *s != 0.0),
        softcap: c.float("softcap", 0.0)?,
        bias: Some(bias),
    };
    let y = attend(c, parts[0], k, v, &how)?;
    let y = merged(c, y)?;
    let dtype = c.dtype(q.id);
    let mut outputs = Vec::new();
    for x in [y, k, v] {
        let x = c.cast(x, dtype)?;
        outputs.push(Val::Value(X { id: x, elem: q.elem }));
    }
    Ok(outputs)
}

/// As in the default domain, with the positions as the second input: [B, S], or the first one.
fn rotary(c: &mut Context<'_>) -> Outputs {
    let (x, positions, cos, sin) = (c.x(0)?, c.x(1)?, c.x(2)?, c.x(3)?);
    let dims = c.dims(x.id)?;
    let mut n = sizes(&[c.int("num_heads", 0)?])?[0];
    let wide = c.cast(x.id, DType::F32)?;
    let by_head = dims.len() == 4;
    let rows = match dims[..] {
        [_, _, _, _] => c.b.permute(wide, &[0, 2, 1, 3])?,
        [b, s, width] => {
            if n == 0 {
                // Without a number of heads the cache tells how wide they are.
                n = width / (2 * c.dims(cos.id)?.get(1).copied().unwrap_or(1).max(1));
            }
            if n == 0 || width % n != 0 {
                return bad(format!("{dims:?} does not make {n} heads"));
            }
            c.reshape(wide, &[b, s, n, width / n])?
        }
        _ => return bad(format!("{dims:?} is no sequence")),
    };
    let [b, s, ..] = c.dims(rows)?[..] else { return bad("has no sequence") };
    let mut at = c.cast(positions.id, DType::I64)?;
    if c.dims(at)?.iter().product::<usize>() == 1 && b * s != 1 {
        let first = c.reshape(at, &[1, 1])?;
        let step = c.b.iota(s.into());
        at = c.b.add(first, step)?;
    }
    let mut angles = Vec::new();
    for cache in [cos.id, sin.id] {
        let cache = c.cast(cache, DType::F32)?;
        let cache = c.b.gather(cache, 0, at)?;
        angles.push(c.b.unsqueeze(cache, 2)?);
    }
    let y = rotate(c, rows, angles[0], angles[1], c.flag("interleaved", false)?)?;
    let y = if by_head { c.b.permute(y, &[0, 2, 1, 3])? } else { c.reshape(y, &dims)? };
    let y = c.cast(y, c.dtype(x.id))?;
    c.one(y, x.elem)
}

/// Exact sums times the scales of both sides, and a bias.
fn scaled(c: &mut Context<'_>, sums: ValueId, scales: [ValueId; 2], bias: Option<X>) -> Made {
    let sums = c.cast(sums, DType::F32)?;
    let mut factor = c.mul(scales[0], scales[1])?;
    if c.dims(factor)? == [1] {
        factor = c.reshape(factor, &[])?;
    }
    let y = c.mul(sums, factor)?;
    match bias {
        Some(bias) => Ok(c.b.add(y, bias.id)?),
        None => Ok(y),
    }
}

fn dynamic_matmul(c: &mut Context<'_>) -> Outputs {
    let (a, b, scale) = (c.x(0)?, c.x(1)?, c.x(2)?);
    let (zero, bias) = (c.opt(3)?, c.opt(4)?);
    let (codes, a_scale, point) = super::quantized::dynamic(c, a.id)?;
    let point = X { id: point, elem: Elem::U8 };
    let sums = product_of_codes(c, codes, Some(point), b.id, zero)?;
    let y = scaled(c, sums, [a_scale, scale.id], bias)?;
    c.one(y, a.elem)
}

fn integer_to_float(c: &mut Context<'_>) -> Outputs {
    let (a, b, a_scale, b_scale) = (c.x(0)?, c.x(1)?, c.x(2)?, c.x(3)?);
    let (a_zero, b_zero, bias) = (c.opt(4)?, c.opt(5)?, c.opt(6)?);
    let sums = product_of_codes(c, a.id, a_zero, b.id, b_zero)?;
    let y = scaled(c, sums, [a_scale.id, b_scale.id], bias)?;
    c.plain(y)
}
