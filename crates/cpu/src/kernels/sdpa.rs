//! `sdpa`: attention over dense keys and values, with a mask.
//!
//! A unit is some dozens of queries of one head. Its scores are a block of scratch: products with
//! the keys, which are turned once a unit, then softmax row by row, then products with the values.
//! Each score and each sum is one chain in the order of the definition.

use cyb_exec::{Call, ExecError};
use cyb_simd::{AnyIsa, Isa, LANES, SimdOp};
use cyb_tensor::DType;

use super::attrs_of;
use super::product::{PANEL, Panel, Rows};
use super::softmax::{cap, exponentials, keep};
use crate::io::{Io, RawTensor};
use crate::kernel::{Build, Kernel, Row};

pub(crate) static ROWS: &[Row] = &[Row { op: "sdpa", name: "sdpa_f32", supports, build }];

/// Queries of a unit.
const QUERIES: usize = 48;

fn supports(call: &Call<'_>) -> bool {
    let floats = call.inputs[..3].iter().all(|f| f.dtype == DType::F32 && f.rank() == 4);
    let mask = call.inputs.get(3).is_none_or(|f| matches!(f.dtype, DType::F32 | DType::Bool));
    floats && mask
}

fn build(b: &mut Build<'_>) -> Result<Box<dyn Kernel>, ExecError> {
    let attrs = attrs_of(&b.node.op);
    Ok(Box::new(Sdpa {
        scale: attrs.float("scale")? as f32,
        causal: attrs.flag("causal")?,
        window: attrs.size("window")?,
        softcap: attrs.float("softcap")? as f32,
        workers: b.team.count(),
        isa: b.isa,
    }))
}

#[derive(Debug)]
struct Sdpa {
    scale: f32,
    causal: bool,
    window: usize,
    softcap: f32,
    workers: usize,
    isa: AnyIsa,
}

/// Floats of scratch: turned keys, scaled queries, scores, and a panel of values.
struct Parts {
    keys: usize,
    queries: usize,
    scores: usize,
    values: usize,
}

impl Parts {
    fn of(d: usize, l: usize) -> Parts {
        let wide = l.next_multiple_of(PANEL);
        Parts { keys: wide * d, queries: QUERIES * d, scores: QUERIES * wide, values: l * PANEL }
    }

    fn all(&self) -> usize {
        (self.keys + self.queries + self.scores + self.values).next_multiple_of(LANES)
    }
}

impl Kernel for Sdpa {
    fn scratch(&self, limits: &[RawTensor]) -> usize {
        let (d, l) = (limits[0].dims[3], limits[1].dims[2]);
        self.workers * Parts::of(d, l).all() * size_of::<f32>()
    }

    fn run(&self, io: &Io<'_>) -> Result<(), String> {
        let (q, k, v) = (io.slice::<f32>(0), io.slice::<f32>(1), io.slice::<f32>(2));
        let ([b, h, s, d], [_, g, l, _]) = (io.dims(0), io.dims(1)) else { return Ok(()) };
        let (b, h, s, d, g, l) = (*b, *h, *s, *d, *g, *l);
        let e = io.dims(2)[3];
        if b * h * s * e == 0 {
            return Ok(());
        }
        let parts = Parts::of(d, l);
        let scratch = io.scratch::<f32>();
        // SAFETY: every worker has a part of its own.
        let scratch = unsafe { scratch.range(io.worker.index * parts.all(), parts.all()) };
        let out = io.output::<f32>(0);
        let mask = (io.inputs.len() > 3).then(|| Mask::of(io));
        let blocks = s.div_ceil(QUERIES);
        let mut held = usize::MAX;
        io.each(b * h * blocks, |unit| {
            let (head, block) = (unit / blocks, unit % blocks);
            let (batch, first) = (head / h, block * QUERIES);
            let group = batch * g + head % h / (h / g.max(1)).max(1);
            let count = QUERIES.min(s - first);
            // SAFETY: the rows are this unit's alone.
            let out = unsafe { out.range((head * s + first) * e, count * e) };
            self.isa.run(Unit {
                sdpa: self,
                q: &q[(head * s + first) * d..][..count * d],
                k: &k[group * l * d..][..l * d],
                v: &v[group * l * e..][..l * e],
                out,
                mask: mask.map(|m| m.head(batch, head % h)),
                sizes: Sizes { s, l, d, e, first, count },
                turned: held == group,
                scratch: &mut *scratch,
            });
            held = group;
        });
        Ok(())
    }
}

/// A mask by its strides over [B, H, S, L], in elements.
#[derive(Clone, Copy, Debug)]
struct Mask {
    start: *const u8,
    dtype: DType,
    strides: [usize; 4],
    at: usize,
}

impl Mask {
    fn of(io: &Io<'_>) -> Mask {
        let (t, dims) = (&io.inputs[3], io.dims(3));
        let mut strides = [0; 4];
        let mut stride = 1;
        for (axis, &n) in dims.iter().enumerate().rev() {
            strides[4 - dims.len() + axis] = if n == 1 { 0 } else { stride };
            stride *= n;
        }
        Mask { start: t.start, dtype: t.dtype, strides, at: 0 }
    }

    fn head(self, batch: usize, head: usize) -> Mask {
        Mask { at: batch * self.strides[0] + head * self.strides[1], ..self }
    }
}

#[derive(Clone, Copy, Debug)]
struct Sizes {
    s: usize,
    l: usize,
    d: usize,
    e: usize,
    /// The unit's queries.
    first: usize,
    count: usize,
}

struct Unit<'a> {
    sdpa: &'a Sdpa,
    q: &'a [f32],
    k: &'a [f32],
    v: &'a [f32],
    out: &'a mut [f32],
    mask: Option<Mask>,
    sizes: Sizes,
    /// Whether this group's keys lie turned in scratch already.
    turned: bool,
    scratch: &'a mut [f32],
}

impl SimdOp for Unit<'_> {
    type Output = ();

    #[inline(always)]
    fn eval<S: Isa>(self, s: S) {
        let Self { sdpa, q, k, v, out, mask, sizes, turned, scratch } = self;
        let Sizes { l, d, e, first, count, .. } = sizes;
        let parts = Parts::of(d, l);
        let (keys, rest) = scratch.split_at_mut(parts.keys);
        let (queries, rest) = rest.split_at_mut(parts.queries);
        let (scores, values) = rest.split_at_mut(parts.scores);
        let wide = l.next_multiple_of(PANEL);
        if !turned {
            turn_keys(k, l, d, keys);
        }
        for (to, &x) in queries.iter_mut().zip(q) {
            *to = x * sdpa.scale;
        }
        for panel in 0..wide / PANEL {
            let columns = PANEL.min(l - panel * PANEL);
            Rows {
                a: &queries[..count * d],
                a_stride: d,
                panel: Panel { values: &keys[panel * PANEL * d..], stride: PANEL },
                k: d,
                rows: count,
                columns,
                to: scores[panel * PANEL..].as_mut_ptr(),
                stride: wide,
            }
            .eval(s);
        }
        for row in 0..count {
            let line = &mut scores[row * wide..][..l];
            cap(s, line, sdpa.softcap);
            if let Some(mask) = &mask {
                // SAFETY: the mask broadcasts to [B, H, S, L], which inference has checked.
                unsafe { hide(line, mask, first + row) };
            }
            if sdpa.causal {
                let position = sizes.l as isize - sizes.s as isize + (first + row) as isize;
                hide_causal(line, position, sdpa.window);
            }
            softmax(s, line);
        }
        for column in (0..e).step_by(PANEL) {
            let columns = PANEL.min(e - column);
            // A panel whose last vector would reach beyond the values is copied.
            let panel = if columns.is_multiple_of(LANES) {
                Panel { values: &v[column.min(v.len())..], stride: e }
            } else {
                for (i, row) in values.chunks_exact_mut(PANEL).take(l).enumerate() {
                    row[..columns].copy_from_slice(&v[i * e + column..][..columns]);
                    row[columns..].fill(0.0);
                }
                Panel { values: &*values, stride: PANEL }
            };
            Rows {
                a: &scores[..count * wide],
                a_stride: wide,
                panel,
                k: l,
                rows: count,
                columns,
                to: out[column..].as_mut_ptr(),
                stride: e,
            }
            .eval(s);
        }
    }
}

/// Keys [L, D] as panels [D, 64], with zeros beyond the last key.
#[inline(always)]
fn turn_keys(k: &[f32], l: usize, d: usize, to: &mut [f32]) {
    if d == 0 {
        return;
    }
    for (panel, block) in to.chunks_exact_mut(PANEL * d).enumerate() {
        let first = panel * PANEL;
        let count = PANEL.min(l - first);
        if count < PANEL {
            block.fill(0.0);
        }
        for (i, key) in k[first * d..][..count * d].chunks_exact(d).enumerate() {
            for (slot, &x) in block[i..].iter_mut().step_by(PANEL).zip(key) {
                *slot = x;
            }
        }
    }
}

/// Adds a row of a mask of floats, or hides where one of truths is false.
///
/// # Safety
/// The mask has elements at its strides for every query and key.
#[inline(always)]
unsafe fn hide(line: &mut [f32], mask: &Mask, query: usize) {
    let (at, step) = (mask.at + query * mask.strides[2], mask.strides[3]);
    for (i, x) in line.iter_mut().enumerate() {
        // SAFETY: the caller's contract.
        unsafe {
            match mask.dtype {
                DType::F32 => *x += *mask.start.cast::<f32>().add(at + i * step),
                _ if *mask.start.add(at + i * step) == 0 => *x = f32::NEG_INFINITY,
                _ => {}
            }
        }
    }
}

/// Hides keys after the query's position, and those `window` or more before it.
#[inline(always)]
fn hide_causal(line: &mut [f32], position: isize, window: usize) {
    let at = |position: isize| usize::try_from(position).unwrap_or(0);
    let end = at(position + 1).min(line.len());
    let start = if window > 0 { at(position + 1 - window as isize).min(end) } else { 0 };
    keep(line, start..end);
}

/// In place; a row of which everything is hidden becomes NaN.
#[inline(always)]
fn softmax<S: Isa>(s: S, line: &mut [f32]) {
    let (_, sum) = exponentials(s, line);
    let inverse = s.splat(1.0 / sum);
    for part in line.chunks_mut(LANES) {
        let y = s.mul(s.load_partial(part), inverse);
        s.store_partial(part, y);
    }
}
