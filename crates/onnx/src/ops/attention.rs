//! Attention and rotary embeddings of the default domain.

use cyb_ir::{Attrs, Exp, Reduce, ValueId};
use cyb_jets::SDPA;
use cyb_tensor::DType;

use super::Rows;
use super::rotary::rotate;
use super::shape::sizes;
use crate::context::{Context, Made, Outputs};
use crate::error::{OpError, bad};
use crate::value::{Val, X};

pub(super) static ROWS: Rows =
    &[("Attention", attention), ("RotaryEmbedding", rotary), ("LinearAttention", linear_attention)];

/// [B, S, H * D] as [B, H, S, D]; four axes stay.
pub(super) fn heads(c: &mut Context<'_>, x: ValueId, n: usize) -> Made {
    let dims = c.dims(x)?;
    match dims[..] {
        [_, _, _, _] => Ok(x),
        [b, s, width] if n > 0 && width % n == 0 => {
            let y = c.reshape(x, &[b, s, n, width / n])?;
            Ok(c.b.permute(y, &[0, 2, 1, 3])?)
        }
        _ => bad(format!("{dims:?} does not make {n} heads")),
    }
}

/// [B, H, S, D] as [B, S, H * D].
pub(super) fn merged(c: &mut Context<'_>, x: ValueId) -> Made {
    let dims = c.dims(x)?;
    let [b, h, s, d] = dims[..] else { return bad("heads need four axes") };
    let y = c.b.permute(x, &[0, 2, 1, 3])?;
    c.reshape(y, &[b, s, h * d])
}

/// 0 where a mask of bools keeps, -inf elsewhere; floats as they are.
fn as_bias(c: &mut Context<'_>, mask: ValueId, dtype: DType) -> Made {
    if c.dtype(mask) != DType::Bool {
        return c.cast(mask, dtype);
    }
    let (keep, hide) = (c.b.scalar(dtype, 0.0)?, c.b.scalar(dtype, f64::NEG_INFINITY)?);
    Ok(c.b.select(mask, keep, hide)?)
}

/// True where query i may see key j: j <= i + `past`. [S, L]
pub(super) fn causal(c: &mut Context<'_>, s: usize, l: usize, past: ValueId) -> Made {
    let (row, column) = (c.b.iota(s.into()), c.b.iota(l.into()));
    let row = c.b.unsqueeze(row, 1)?;
    let row = c.add(row, past)?;
    c.le(column, row)
}

/// What scores become on their way to weights.
#[derive(Clone, Debug, Default)]
pub(super) struct Attend {
    pub(super) scale: Option<f64>,
    pub(super) softcap: f64,
    /// Added to [B, H, S, L].
    pub(super) bias: Option<ValueId>,
}

/// Scores at each stage, and the output.
pub(super) struct Attended {
    pub(super) y: ValueId,
    capped: ValueId,
    biased: ValueId,
    weights: ValueId,
}

/// Attention of q [B, H, S, D] over k [B, G, L, D] and v [B, G, L, E], step by step.
fn spelled_out(
    c: &mut Context<'_>,
    q: ValueId,
    k: ValueId,
    v: ValueId,
    how: &Attend,
) -> Result<Attended, OpError> {
    let (qd, kd) = (c.dims(q)?, c.dims(k)?);
    let ([_, h, _, d], [_, g, _, _]) = (&qd[..], &kd[..]) else {
        return bad("queries and keys need four axes");
    };
    if *g == 0 || h % g != 0 {
        return bad(format!("{h} query heads do not share {g} key heads"));
    }
    let (k, v) = (repeated(c, k, h / g)?, repeated(c, v, h / g)?);
    let scale = how.scale.unwrap_or_else(|| 1.0 / (*d as f64).sqrt());
    let q = c.b.scale(q, scale)?;
    let turned = c.b.permute(k, &[0, 1, 3, 2])?;
    let raw = c.matmul(q, turned)?;
    let capped = if how.softcap > 0.0 {
        let small = c.b.scale(raw, 1.0 / how.softcap)?;
        let t = c.tanh(small)?;
        c.b.scale(t, how.softcap)?
    } else {
        raw
    };
    let biased = match how.bias {
        Some(bias) => c.b.add(capped, bias)?,
        None => capped,
    };
    let weights = c.softmax(biased, 3)?;
    let y = c.matmul(weights, v)?;
    Ok(Attended { y, capped, biased, weights })
}

/// Each head `n` times, one after another.
fn repeated(c: &mut Context<'_>, x: ValueId, n: usize) -> Made {
    if n == 1 {
        return Ok(x);
    }
    let dims = c.dims(x)?;
    let [b, g, l, d] = dims[..] else { return bad("heads need four axes") };
    let y = c.reshape(x, &[b, g, 1, l, d])?;
    let y = c.broadcast(y, &[b, g, n, l, d])?;
    c.reshape(y, &[b, g * n, l, d])
}

/// Attention as a jet where it can be one.
pub(super) fn attend(
    c: &mut Context<'_>,
    q: ValueId,
    k: ValueId,
    v: ValueId,
    how: &Attend,
) -> Made {
    let (qd, kd) = (c.dims(q)?, c.dims(k)?);
    let plain = c.dtype(q) == DType::F32 && qd.len() == 4 && kd.len() == 4;
    if !plain || kd[1] == 0 || qd[1] % kd[1] != 0 {
        return Ok(spelled_out(c, q, k, v, how)?.y);
    }
    let scale = how.scale.unwrap_or_else(|| 1.0 / (qd[3] as f64).sqrt());
    let attrs = Attrs::new()
        .with("scale", scale)
        .with("causal", false)
        .with("window", 0usize)
        .with("softcap", how.softcap);
    let mut inputs = vec![q, k, v];
    inputs.extend(how.bias);
    Ok(c.b.jet(&SDPA, attrs, &inputs)?)
}

fn attention(c: &mut Context<'_>) -> Outputs {
    let (q, k, v) = (c.x(0)?, c.x(1)?, c.x(2)?);
    let (mask, past_k, past_v) = (c.opt(3)?, c.opt(4)?, c.opt(5)?);
    let lengths = c.opt(6)?;
    let dtype = c.dtype(q.id);
    let n_heads =
        |c: &Context<'_>, name| -> Result<usize, OpError> { Ok(sizes(&[c.int(name, 0)?])?[0]) };
    let (qh, kh) = (n_heads(c, "q_num_heads")?, n_heads(c, "kv_num_heads")?);
    let flat = c.rank(q.id) == 3;
    let query = heads(c, q.id, qh)?;
    let (mut key, mut value) = (heads(c, k.id, kh)?, heads(c, v.id, kh)?);
    let mut past = 0;
    if let Some(before) = past_k {
        past = c.dims(before.id)?.get(2).copied().unwrap_or(0);
        key = c.b.concat(&[before.id, key], 2)?;
    }
    if let Some(before) = past_v {
        value = c.b.concat(&[before.id, value], 2)?;
    }
    let (wq, wk, wv) = (c.wide(query)?, c.wide(key)?, c.wide(value)?);
    let wide = c.dtype(wq);
    let (wk, wv) = (c.cast(wk, wide)?, c.cast(wv, wide)?);
    let (qd, kd) = (c.dims(wq)?, c.dims(wk)?);
    let ([batch, _, s, _], [_, _, l, _]) = (&qd[..], &kd[..]) else {
        return bad("queries and keys need four axes");
    };
    let (batch, s, l) = (*batch, *s, *l);
    let mut bias = None;
    let join = |c: &mut Context<'_>, a: Option<ValueId>, b: ValueId| -> Made {
        match a {
            Some(a) => c.add(a, b),
            None => Ok(b),
        }
    };
    if let Some(mask) = mask {
        let mut m = mask.id;
        let own = c.dims(m)?;
        if let Some(&last) = own.last()
            && last < l
            && last != 1
        {
            let hidden = if c.dtype(m) == DType::Bool { 0.0 } else { f64::NEG_INFINITY };
            m = c.b.pad(m, own.len() - 1, 0, l - last, hidden)?;
        }
        bias = Some(as_bias(c, m, wide)?);
    }
    if c.flag("is_causal", false)? {
        let past = c.indices(vec![], &[past as i64])?;
        let keep = causal(c, s, l, past)?;
        let hide = as_bias(c, keep, wide)?;
        bias = Some(join(c, bias, hide)?);
    }
    if let Some(lengths) = lengths {
        let lengths = c.cast(lengths.id, DType::I64)?;
        let lengths = c.reshape(lengths, &[batch, 1, 1, 1])?;
        let place = c.b.iota(l.into());
        let keep = c.b.lt(place, lengths)?;
        let hide = as_bias(c, keep, wide)?;
        bias = Some(join(c, bias, hide)?);
    }
    let scale = c.opt_float("scale")?;
    let softcap = c.float("softcap", 0.0)?;
    let how = Attend { scale, softcap, bias };
    let scores = c.wanted(3);
    let (y, shown) = if scores || c.dtype(wq) != DType::F32 {
        let all = spelled_out(c, wq, wk, wv, &how)?;
        let shown = match c.int("qk_matmul_output_mode", 0)? {
            0 | 1 => all.capped,
            2 => all.biased,
            3 => all.weights,
            other => return bad(format!("qk_matmul_output_mode {other} is unknown")),
        };
        (all.y, Some(shown))
    } else {
        (attend(c, wq, wk, wv, &how)?, None)
    };
    let y = c.cast(y, dtype)?;
    let y = if flat { merged(c, y)? } else { y };
    let mut outputs = vec![
        Val::Value(X { id: y, elem: q.elem }),
        Val::Value(X { id: key, elem: k.elem }),
        Val::Value(X { id: value, elem: v.elem }),
    ];
    if let Some(shown) = shown {
        let shown = c.cast(shown, dtype)?;
        outputs.push(Val::Value(X { id: shown, elem: q.elem }));
    }
    Ok(outputs)
}

fn rotary(c: &mut Context<'_>) -> Outputs {
    let (x, cos, sin) = (c.x(0)?, c.x(1)?, c.x(2)?);
    let positions = c.opt(3)?;
    let interleaved = c.flag("interleaved", false)?;
    let n = sizes(&[c.int("num_heads", 0)?])?[0];
    let dims = c.dims(x.id)?;
    let wide = c.wide(x.id)?;
    let rows = match dims[..] {
        [_, _, _, _] => c.b.permute(wide, &[0, 2, 1, 3])?,
        [b, s, width] if n > 0 && width % n == 0 => c.reshape(wide, &[b, s, n, width / n])?,
        _ => return bad(format!("{dims:?} does not make {n} heads")),
    };
    let mut angles = Vec::new();
    for cache in [cos.id, sin.id] {
        let mut cache = c.cast(cache, c.dtype(rows))?;
        if let Some(positions) = positions {
            cache = c.b.gather(cache, 0, positions.id)?;
        }
        // [B, S, D/2] or, without a batch, [S, D/2].
        let axis = c.rank(cache) - 1;
        let cache = c.b.unsqueeze(cache, axis)?;
        angles.push(if c.rank(cache) == 3 { c.b.unsqueeze(cache, 0)? } else { cache });
    }
    let y = rotate(c, rows, angles[0], angles[1], interleaved)?;
    let y = if dims.len() == 4 { c.b.permute(y, &[0, 2, 1, 3])? } else { c.reshape(y, &dims)? };
    let y = c.cast(y, c.dtype(x.id))?;
    c.one(y, x.elem)
}

/// A state [B, G, D, E] that each position decays, corrects and adds to, a step at a time.
fn linear_attention(c: &mut Context<'_>) -> Outputs {
    let (q, k, v) = (c.x(0)?, c.x(1)?, c.x(2)?);
    let (past, decay, beta) = (c.opt(3)?, c.opt(4)?, c.opt(5)?);
    let count =
        |c: &Context<'_>, name| -> Result<usize, OpError> { Ok(sizes(&[c.int(name, 0)?])?[0]) };
    let (h, g) = (count(c, "q_num_heads")?, count(c, "kv_num_heads")?);
    if g == 0 || h % g != 0 {
        return bad(format!("{h} query heads do not share {g} key heads"));
    }
    let f32_heads = |c: &mut Context<'_>, x: ValueId, n: usize| -> Made {
        let x = c.cast(x, DType::F32)?;
        heads(c, x, n)
    };
    let (query, key, value) =
        (f32_heads(c, q.id, h)?, f32_heads(c, k.id, g)?, f32_heads(c, v.id, g)?);
    let (qd, vd) = (c.dims(query)?, c.dims(value)?);
    let (batch, t, d, e) = (qd[0], qd[2], qd[3], vd[3]);
    let by_head = |c: &mut Context<'_>, x: Option<X>| -> Result<Option<ValueId>, OpError> {
        let Some(x) = x else { return Ok(None) };
        let width = c.dims(x.id)?.last().copied().unwrap_or(0);
        let n = if width == 1 { 1 } else { g };
        f32_heads(c, x.id, n).map(Some)
    };
    let (decay, beta) = (by_head(c, decay)?, by_head(c, beta)?);
    let scale = match c.float("scale", 0.0)? {
        0.0 => 1.0 / (d as f64).sqrt(),
        scale => scale,
    };
    let rule = c.text("update_rule", "gated_delta")?;
    let (gated, delta) = match rule.as_str() {
        "linear" => (false, false),
        "gated" => (true, false),
        "delta" => (false, true),
        "gated_delta" => (true, true),
        other => return bad(format!("update_rule {other:?} is unknown")),
    };
    if gated != decay.is_some() || delta != beta.is_some() {
        return bad(format!("update_rule {rule:?} contradicts the inputs decay and beta"));
    }
    let state_elem = past.map_or(q.elem, |p| p.elem);
    let mut state = match past {
        Some(past) => c.cast(past.id, DType::F32)?,
        None => c.numbers(DType::F32, vec![batch, g, d, e], &vec![0.0; batch * g * d * e])?,
    };
    let mut rows = Vec::new();
    for i in 0..t {
        // Columns [B, G, D, 1] and rows [B, G, 1, E].
        let key_row = c.b.slice(key, 2, i, 1)?;
        let key_column = c.b.permute(key_row, &[0, 1, 3, 2])?;
        let mut new = c.b.slice(value, 2, i, 1)?;
        if let Some(decay) = decay {
            let gate = c.b.slice(decay, 2, i, 1)?;
            let gate = c.b.permute(gate, &[0, 1, 3, 2])?;
            let gate = c.b.exp(Exp::Exp, gate)?;
            state = c.b.mul(state, gate)?;
        }
        if let Some(beta) = beta {
            let seen = c.b.mul(state, key_column)?;
            let seen = c.reduce_kept(Reduce::Sum, seen, &[2])?;
            let rest = c.sub(new, seen)?;
            let rate = c.b.slice(beta, 2, i, 1)?;
            new = c.b.mul(rest, rate)?;
        }
        let added = c.b.mul(key_column, new)?;
        state = c.b.add(state, added)?;
        let query_row = c.b.slice(query, 2, i, 1)?;
        let column = c.b.permute(query_row, &[0, 1, 3, 2])?;
        let shared = repeated(c, state, h / g)?;
        let seen = c.b.mul(shared, column)?;
        rows.push(c.reduce_kept(Reduce::Sum, seen, &[2])?);
    }
    let y = match rows.as_slice() {
        [] => return bad("the sequence is empty"),
        [one] => *one,
        many => c.b.concat(many, 2)?,
    };
    let y = c.b.scale(y, scale)?;
    let y = merged(c, y)?;
    let y = c.cast(y, c.dtype(q.id))?;
    let state = match state_elem.storage() {
        Some(dtype) => c.cast(state, dtype)?,
        None => state,
    };
    Ok(vec![Val::Value(X { id: y, elem: q.elem }), Val::Value(X { id: state, elem: state_elem })])
}
