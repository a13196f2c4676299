//! Random numbers, from a counter and a seed: the node's own, or one made of its name. A model
//! gives the same numbers each time it is run.

use cyb_formats::onnx::Elem;
use cyb_ir::ValueId;
use cyb_tensor::DType;

use super::Rows;
use super::shape::sizes;
use crate::context::{Context, Outputs};
use crate::error::{OpError, bad};

pub(super) static ROWS: Rows = &[
    ("RandomNormal", |c| random(c, true, false)),
    ("RandomNormalLike", |c| random(c, true, true)),
    ("RandomUniform", |c| random(c, false, false)),
    ("RandomUniformLike", |c| random(c, false, true)),
    ("Bernoulli", bernoulli),
];

/// SplitMix64 of a seed and a counter.
fn mix(seed: u64, counter: u64) -> u64 {
    let mut z = seed.wrapping_add(counter.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// In [0, 1).
fn uniform(seed: u64, counter: u64) -> f64 {
    (mix(seed, counter) >> 11) as f64 / (1u64 << 53) as f64
}

fn seed(c: &Context<'_>) -> Result<u64, OpError> {
    Ok(match c.opt_float("seed")? {
        Some(seed) => seed.to_bits(),
        None => c.node.name.bytes().fold(0, |h, b| mix(h, u64::from(b))),
    })
}

fn random(c: &mut Context<'_>, normal: bool, like: bool) -> Outputs {
    let mut elem = Elem::F32;
    let dims = if like {
        let x = c.x(0)?;
        elem = x.elem;
        c.dims(x.id)?
    } else {
        sizes(&c.opt_int_list("shape")?.unwrap_or_default())?
    };
    if let Some(id) = c.opt_int("dtype")? {
        elem = Elem::from_id(id).ok_or_else(|| OpError::Bad("dtype is unknown".into()))?;
    }
    let (a, b) = match normal {
        true => (c.float("mean", 0.0)?, c.float("scale", 1.0)?),
        false => (c.float("low", 0.0)?, c.float("high", 1.0)?),
    };
    let seed = seed(c)?;
    let n: usize = dims.iter().product();
    let number = |i: u64| {
        if !normal {
            return a + uniform(seed, i) * (b - a);
        }
        // Box and Muller; the radius needs a number above 0.
        let (u, v) = (1.0 - uniform(seed, 2 * i), uniform(seed, 2 * i + 1));
        a + b * (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos()
    };
    let Some(dtype) = elem.storage().filter(|_| n <= 1 << 28) else {
        return bad(format!("{n} random numbers of {elem} are not made"));
    };
    let numbers: Vec<f64> = (0..n as u64).map(number).collect();
    let y = c.numbers(dtype, dims, &numbers)?;
    c.one(y, elem)
}

fn bernoulli(c: &mut Context<'_>) -> Outputs {
    let x = c.x(0)?;
    let dims = c.dims(x.id)?;
    let elem = match c.opt_int("dtype")? {
        Some(id) => Elem::from_id(id).ok_or_else(|| OpError::Bad("dtype is unknown".into()))?,
        None => x.elem,
    };
    let seed = seed(c)?;
    let n: usize = dims.iter().product();
    let numbers: Vec<f64> = (0..n as u64).map(|i| uniform(seed, i)).collect();
    let drawn: ValueId = c.numbers(DType::F64, dims, &numbers)?;
    let wide = c.cast(x.id, DType::F64)?;
    let hit = c.b.lt(drawn, wide)?;
    let Some(dtype) = elem.storage() else { return bad(format!("{elem} has no dtype here")) };
    let y = c.cast(hit, dtype)?;
    c.one(y, elem)
}
