//! Rotary position embedding.

use cyb_ir::{Attrs, Builder, Case, Exp, Fact, Fill, IrError, Jet, Signature, ValueId};
use cyb_tensor::{DType, Dim};

use crate::sugar::{Defined, arity};

/// `rope{style, scale}(x[T, H, D], positions[T], frequencies[R])`.
///
/// Turns the first 2R elements of every head by the angles `position * frequencies[i]`, with cosine
/// and sine times `scale`; elements past 2R pass through. The pair turned by angle i is
/// - `half`: elements i and i + R (GPT-NeoX, Hugging Face),
/// - `pairs`: elements 2i and 2i + 1 (GPT-J, GGUF files of the llama family).
///
/// Every scaling of long contexts (linear, NTK, YaRN, Llama 3, LongRoPE) is a choice of frequencies
/// and scale, made when the model is built.
pub static ROPE: Jet = Jet {
    name: "rope",
    summary: "rotary position embedding",
    define,
    signatures: || {
        ["half", "pairs"]
            .map(|style| Signature {
                inputs: vec![
                    Fact::new(DType::F32, [Dim::symbol("t"), Dim::symbol("h"), 64.into()]),
                    Fact::new(DType::I32, [Dim::symbol("t")]),
                    Fact::new(DType::F32, [32.into()]),
                ],
                attrs: Attrs::new().with("style", style).with("scale", 1.0),
            })
            .into()
    },
    cases,
    // Angles reach the largest position; their sine inherits its rounding.
    tolerance: cyb_ir::Tolerance { absolute: 1e-5, relative: 1e-3 },
    in_place: &[],
};

fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for style in ["half", "pairs"] {
        for (heads, width, turned, scale) in [(1, 64, 32, 1.0), (3, 80, 40, 1.0), (2, 96, 16, 1.25)]
        {
            let frequencies: Vec<f32> =
                (0..turned).map(|i| 10000f32.powf(-(i as f32) / turned as f32)).collect();
            let attrs = Attrs::new().with("style", style).with("scale", scale);
            cases.push(
                Case::new(format!("{style} {heads}x{width}"), attrs)
                    .normal(&[5, heads, width])
                    .input(DType::I32, &[5], Fill::Ints(vec![0, 1, 7, 511, 40_000]))
                    .input(DType::F32, &[turned], Fill::Floats(frequencies)),
            );
        }
    }
    cases
}

fn define(b: &mut Builder, inputs: &[ValueId], attrs: &Attrs) -> Defined {
    arity("rope", inputs, 3..=3)?;
    let [x, positions, frequencies] = [inputs[0], inputs[1], inputs[2]];
    let known = |b: &Builder, v: ValueId, axis: usize| {
        b.dim(v, axis)?.known().ok_or_else(|| IrError::Operand {
            op: "rope".into(),
            facts: b.fact(v).to_string(),
            why: "the head width must be known".into(),
        })
    };
    let (width, turned) = (known(b, x, 2)?, known(b, frequencies, 0)?);
    let (t, heads) = (b.dim(x, 0)?, b.dim(x, 1)?);

    let positions = b.cast(positions, DType::F32)?;
    let positions = b.reshape(positions, [t.clone(), 1.into(), 1.into()])?;
    let angles = b.mul(positions, frequencies)?; // [T, 1, R]
    let turn = |b: &mut Builder, kind| {
        let unit = b.exp(kind, angles)?;
        b.scale(unit, attrs.float("scale")?)
    };
    let cos = turn(b, Exp::Cos)?;
    let sin = turn(b, Exp::Sin)?;

    let style = attrs.text("style")?;
    let step = match style {
        "half" => 1,
        "pairs" => 2,
        other => {
            return Err(IrError::Attr {
                name: "style".into(),
                want: "half or pairs",
                got: other.to_owned(),
            });
        }
    };
    let second_start = if step == 1 { turned } else { 1 };
    let first = b.strided(x, 2, 0, turned, step)?; // [T, H, R]
    let second = b.strided(x, 2, second_start, turned, step)?;
    let (fc, ss) = (b.mul(first, cos)?, b.mul(second, sin)?);
    let (sc, fs) = (b.mul(second, cos)?, b.mul(first, sin)?);
    let (new_first, new_second) = (b.sub(fc, ss)?, b.add(sc, fs)?);
    let mut parts = if step == 1 {
        vec![new_first, new_second]
    } else {
        let (f, s) = (b.unsqueeze(new_first, 3)?, b.unsqueeze(new_second, 3)?);
        let pairs = b.concat(&[f, s], 3)?; // [T, H, R, 2]
        vec![b.reshape(pairs, [t, heads, (2 * turned).into()])?]
    };
    if width > 2 * turned {
        parts.push(b.slice(x, 2, 2 * turned, width - 2 * turned)?);
    }
    Ok(vec![if parts.len() == 1 { parts[0] } else { b.concat(&parts, 2)? }])
}
