//! Attention of `com.microsoft` whose projections are part of it: `Attention`, and `QAttention` of
//! codes; the embeddings in front of it, and those of codes.

use cyb_formats::onnx::Elem;
use cyb_ir::ValueId;
use cyb_tensor::DType;

use super::Rows;
use super::attention::heads;
use super::contrib::finish_heads;
use super::integer::product_of_codes;
use super::matmul::product;
use super::normalization::layer_norm_last;
use super::quantized::dequantized;
use super::shape::sizes;
use crate::context::{Context, Made, Outputs};
use crate::error::{OpError, bad};
use crate::value::{Val, X};

pub(super) static ROWS: Rows = &[
    ("Attention", attention),
    ("QAttention", attention_of_codes),
    ("EmbedLayerNormalization", embed_norm),
    ("QEmbedLayerNormalization", embed_norm_of_codes),
];

/// Input, weights [D, 3 * H], bias, mask, past, addend.
fn attention(c: &mut Context<'_>) -> Outputs {
    let (x, w) = (c.x(0)?, c.x(1)?);
    let (bias, mask, past, addend) = (c.opt(2)?, c.opt(3)?, c.opt(4)?, c.opt(5)?);
    let (wide, w) = (c.cast(x.id, DType::F32)?, c.cast(w.id, DType::F32)?);
    let all = product(c, wide, w)?;
    from_projected(c, x, all, [bias, mask, past, addend])
}

/// Input and weights as codes, bias, their scales, mask, their zero points, past.
fn attention_of_codes(c: &mut Context<'_>) -> Outputs {
    let (x, w, bias) = (c.x(0)?, c.x(1)?, c.opt(2)?);
    let (x_scale, w_scale) = (c.x(3)?, c.x(4)?);
    let (mask, x_zero, w_zero, past) = (c.opt(5)?, c.opt(6)?, c.opt(7)?, c.opt(8)?);
    if c.flag("do_rotary", false)? {
        return bad("do_rotary is not supported; quantise a model without it");
    }
    let sums = product_of_codes(c, x.id, x_zero, w.id, w_zero)?;
    let sums = c.cast(sums, DType::F32)?;
    let (a, b) = (one_number(c, x_scale.id)?, one_number(c, w_scale.id)?);
    let factor = c.mul(a, b)?;
    let factor = c.cast(factor, DType::F32)?;
    let all = c.b.mul(sums, factor)?;
    // Results are floats of the scale's type.
    from_projected(c, x_scale, all, [bias, mask, past, None])
}

/// A vector of one number as that number.
fn one_number(c: &mut Context<'_>, v: ValueId) -> Made {
    match c.dims(v)?[..] {
        [1] => c.reshape(v, &[]),
        _ => Ok(v),
    }
}

/// Queries, keys and values side by side [B, S, 3 * H] without their bias, to the output, and keys
/// and values [2, B, N, L, D] where they are wanted.
fn from_projected(
    c: &mut Context<'_>,
    like: X,
    all: ValueId,
    [bias, mask, past, addend]: [Option<X>; 4],
) -> Outputs {
    let n = sizes(&[c.int("num_heads", 0)?])?[0];
    let mut all = all;
    if c.rank(all) != 3 {
        return bad(format!("{:?} is no batch of sequences", c.dims(all)?));
    }
    if let Some(bias) = bias {
        let bias = c.cast(bias.id, DType::F32)?;
        all = c.b.add(all, bias)?;
    }
    let width = c.dims(all)?[2];
    let widths = match c.opt_int_list("qkv_hidden_sizes")? {
        Some(list) => sizes(&list)?,
        None => vec![width / 3; 3],
    };
    if widths.len() != 3 || widths.iter().sum::<usize>() != width {
        return bad(format!("{width} columns are not {widths:?}"));
    }
    let (mut parts, mut from) = (Vec::new(), 0);
    for width in widths {
        let part = c.b.slice(all, 2, from, width)?;
        parts.push(heads(c, part, n)?);
        from += width;
    }
    let mut before = [None, None];
    if let Some(past) = past {
        let dims = c.dims(past.id)?;
        let [2, b, h, l, d] = dims[..] else { return bad(format!("a past of {dims:?}")) };
        for (i, slot) in before.iter_mut().enumerate() {
            let own = c.b.slice(past.id, 0, i, 1)?;
            let id = c.reshape(own, &[b, h, l, d])?;
            *slot = Some(X { id, elem: past.elem });
        }
    }
    let one_way = c.flag("unidirectional", false)?;
    let mut outputs = finish_heads(c, like, parts, before, mask, addend, one_way)?;
    let present = outputs.split_off(1);
    if c.wanted(1) {
        let mut both = Vec::new();
        for val in &present {
            let x = c.place(val)?;
            both.push(c.b.unsqueeze(x.id, 0)?);
        }
        let id = c.b.concat(&both, 0)?;
        outputs.push(Val::Value(X { id, elem: like.elem }));
    }
    Ok(outputs)
}

/// A table of rows, and how codes in it are decoded.
#[derive(Clone, Copy)]
struct Table {
    values: X,
    scale: Option<X>,
    zero: Option<X>,
}

impl Table {
    /// The rows at `at`, as floats.
    fn rows(&self, c: &mut Context<'_>, at: ValueId) -> Made {
        let rows = c.b.gather(self.values.id, 0, at)?;
        self.decoded(c, rows)
    }

    fn decoded(&self, c: &mut Context<'_>, x: ValueId) -> Made {
        match self.scale {
            Some(scale) => dequantized(c, x, scale.id, self.zero),
            None => Ok(x),
        }
    }
}

/// What an embedding is made of.
struct Embedding {
    words: Table,
    places: Table,
    segments: Option<Table>,
    gamma: Table,
    beta: Table,
    mask: Option<X>,
    positions: Option<X>,
    eps: f64,
    elem: Elem,
}

fn embed_norm(c: &mut Context<'_>) -> Outputs {
    let plain = |values| Table { values, scale: None, zero: None };
    let words = c.x(2)?;
    let parts = Embedding {
        words: plain(words),
        places: plain(c.x(3)?),
        segments: c.opt(4)?.map(plain),
        gamma: plain(c.x(5)?),
        beta: plain(c.x(6)?),
        mask: c.opt(7)?,
        positions: c.opt(8)?,
        eps: c.float("epsilon", 1e-12)?,
        elem: words.elem,
    };
    embedded(c, parts)
}

fn embed_norm_of_codes(c: &mut Context<'_>) -> Outputs {
    // Tables lie at 2, their scales at 8, their zero points at 13, in the same order.
    let table = |c: &mut Context<'_>, i: usize| -> Result<Table, OpError> {
        Ok(Table { values: c.x(2 + i)?, scale: Some(c.x(8 + i)?), zero: c.opt(13 + i)? })
    };
    let segments = if c.has(4) { Some(table(c, 2)?) } else { None };
    let parts = Embedding {
        words: table(c, 0)?,
        places: table(c, 1)?,
        segments,
        gamma: table(c, 3)?,
        beta: table(c, 4)?,
        mask: c.opt(7)?,
        positions: None,
        eps: c.float("epsilon", 1e-12)?,
        elem: c.x(8)?.elem,
    };
    embedded(c, parts)
}

fn embedded(c: &mut Context<'_>, parts: Embedding) -> Outputs {
    let ids = c.x(0)?;
    let segments = c.opt(1)?;
    let [batch, length] = c.dims(ids.id)?[..] else {
        return bad(format!("input_ids of {:?} are no batch of sequences", c.dims(ids.id)?));
    };
    let ids = c.cast(ids.id, DType::I32)?;
    let mut sum = parts.words.rows(c, ids)?;
    let at = match parts.positions {
        Some(p) => c.cast(p.id, DType::I32)?,
        None => {
            let steps = c.b.iota(length.into());
            c.cast(steps, DType::I32)?
        }
    };
    let place = parts.places.rows(c, at)?;
    sum = c.add(sum, place)?;
    if let (Some(segments), Some(table)) = (segments, parts.segments) {
        let segments = c.cast(segments.id, DType::I32)?;
        let segment = table.rows(c, segments)?;
        sum = c.add(sum, segment)?;
    }
    let wide = c.wide(sum)?;
    let gamma = parts.gamma.decoded(c, parts.gamma.values.id)?;
    let beta = parts.beta.decoded(c, parts.beta.values.id)?;
    let y = layer_norm_last(c, wide, gamma, Some(beta), parts.eps)?;
    let Some(dtype) = parts.elem.storage() else {
        return bad(format!("{} is no float type", parts.elem));
    };
    let y = c.cast(y, dtype)?;
    let lengths = match parts.mask {
        Some(mask) => {
            let lengths = c.b.sum(mask.id, &[1])?;
            c.cast(lengths, DType::I32)?
        }
        None => c.numbers(DType::I32, vec![batch], &vec![0.0; batch])?,
    };
    let sum = c.cast(sum, dtype)?;
    Ok(vec![
        Val::Value(X { id: y, elem: parts.elem }),
        Val::Value(X { id: lengths, elem: Elem::I32 }),
        Val::Value(X { id: sum, elem: parts.elem }),
    ])
}
