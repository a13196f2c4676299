//! `matmul_integer`: exact products of 8-bit codes.
//!
//! Weights are packed once as signed bytes, 16 columns by 4 of the inner axis side by side, which is
//! what the instruction sets' dot products take; rows are unsigned bytes. With `a` and `w` the codes
//! so shifted, the product of `a - z` and `w - y` is `sum(a w) - z sum(w) - y sum(a) + K z y`: the
//! sums over columns are known when weights are packed, the sums over rows are needed only where some
//! `y` is not 0. Everything is modulo 2^32, so that order means nothing.

use std::sync::Arc;

use cyb_exec::{Call, ExecError};
use cyb_simd::{AnyIsa, Isa, LANES, SimdOp};
use cyb_tensor::{DType, Tensor};

use super::attrs_of;
use crate::io::{Io, RawTensor};
use crate::kernel::{Build, Kernel, Row};

pub(crate) static ROWS: &[Row] =
    &[Row { op: "matmul_integer", name: "matmul_i8", supports, build }];

/// Values of the inner axis that one dot product takes.
pub(super) const STEP: usize = 4;
/// Bytes of a step of a tile.
const STEP_BYTES: usize = STEP * LANES;
/// Rows of a register tile.
const COLUMNS: usize = 6;
/// Weight tiles of a register tile, where registers are many.
const TILES: usize = 4;
/// Rows of a unit.
const UNIT_ROWS: usize = 48;

pub(super) fn codes(dtype: DType) -> bool {
    matches!(dtype, DType::U8 | DType::I8)
}

fn supports(call: &Call<'_>) -> bool {
    let [a, w, a_zero, w_zero] = call.inputs[..] else { return false };
    codes(a.dtype)
        && codes(w.dtype)
        && a_zero.rank() == 0
        && w_zero.rank() <= 1
        && call.fixed[1]
        && call.fixed[3]
        && w.shape.iter().all(|d| d.known().is_some())
}

/// Weights of codes, packed.
#[derive(Debug)]
struct Codes {
    n: usize,
    k: usize,
    /// Tiles of 16 columns: `steps` by 16 columns by 4 signed bytes.
    tiles: Vec<i8>,
    /// Sums over each column, and for each its zero point; padded to whole tiles.
    sums: Vec<i32>,
    zeros: Vec<i32>,
    /// Whether any zero point is not 0.
    shifted: bool,
}

impl Codes {
    /// `at(k, n)` is the place of a weight in the tensor's bytes.
    fn pack(
        w: &Tensor,
        zero: &Tensor,
        (k, n): (usize, usize),
        at: impl Fn(usize, usize) -> usize,
    ) -> Codes {
        let signed = w.dtype() == DType::I8;
        // Unsigned codes less 128 are signed ones.
        let code = |b: u8| if signed { b.cast_signed() } else { (b ^ 0x80).cast_signed() };
        let (steps, count) = (k.div_ceil(STEP), n.div_ceil(LANES));
        let bytes = w.bytes().as_slice();
        let mut tiles = vec![0i8; count * steps * STEP_BYTES];
        let mut sums = vec![0i32; count * LANES];
        for (tile, out) in tiles.chunks_exact_mut((steps * STEP_BYTES).max(1)).enumerate() {
            for i in 0..k {
                for column in tile * LANES..n.min((tile + 1) * LANES) {
                    let value = code(bytes[at(i, column)]);
                    let lane = column % LANES;
                    out[i / STEP * STEP_BYTES + lane * STEP + i % STEP] = value;
                    sums[column] += i32::from(value);
                }
            }
        }
        let given = zero.bytes().as_slice();
        let zeros: Vec<i32> = (0..count * LANES)
            .map(|column| match given {
                [one] => i32::from(code(*one)),
                each => each.get(column).map_or(0, |&b| i32::from(code(b))),
            })
            .collect();
        let shifted = zeros[..n].iter().any(|&z| z != 0);
        Codes { n, k, tiles, sums, zeros, shifted }
    }

    /// The product, from the sums of a tile with a row of unsigned bytes, the zero point of those
    /// bytes and their sum.
    #[inline(always)]
    fn corrected<S: Isa>(&self, s: S, tile: usize, sums: S::I, zero: i32, row_sum: i32) -> S::I {
        let column = tile * LANES;
        // SAFETY: sums and zero points are padded to whole tiles.
        let (of_column, zeros) = unsafe {
            (s.load_i(self.sums[column..].as_ptr()), s.load_i(self.zeros[column..].as_ptr()))
        };
        let y = s.add_i(sums, s.mul_i(of_column, s.splat_i(S::BYTE_BIAS - zero)));
        if !self.shifted {
            return y;
        }
        let left = (self.k as i32).wrapping_mul(zero).wrapping_sub(row_sum);
        s.add_i(y, s.mul_i(zeros, s.splat_i(left)))
    }

    fn steps(&self) -> usize {
        self.k.div_ceil(STEP)
    }

    fn tile_count(&self) -> usize {
        self.n.div_ceil(LANES)
    }

    fn tile(&self, tile: usize) -> *const u8 {
        self.tiles[tile * self.steps() * STEP_BYTES..].as_ptr().cast()
    }
}

fn build(b: &mut Build<'_>) -> Result<Box<dyn Kernel>, ExecError> {
    let zero = b.graph.tensor(b.node.inputs[3]).cloned();
    let turned = attrs_of(&b.node.op).flag("turned").unwrap_or(false);
    let kind = if turned { "codes, turned" } else { "codes" };
    let weights = b.pack_as(b.node.inputs[1], &form(kind, zero.as_ref()), |w| {
        let (&[rows, columns], Some(zero)) = (w.shape(), &zero) else {
            return Err("a matrix has two axes".to_owned());
        };
        Ok(match turned {
            true => Codes::pack(w, zero, (rows, columns), |i, n| i * columns + n),
            false => Codes::pack(w, zero, (columns, rows), |i, n| n * columns + i),
        })
    })?;
    Ok(Box::new(MatmulInteger { weights, isa: b.isa }))
}

/// The name of a packed form with zero points.
pub(super) fn form(kind: &str, zero: Option<&Tensor>) -> String {
    format!("{kind} {:?}", zero.map(|z| z.bytes().as_slice().to_vec()))
}

#[derive(Debug)]
struct MatmulInteger {
    weights: Arc<Codes>,
    isa: AnyIsa,
}

/// Rows as unsigned bytes, padded to whole steps, and their sums behind them.
fn scratch_bytes(rows: usize, k: usize) -> usize {
    (rows * k.div_ceil(STEP) * STEP).next_multiple_of(LANES) + rows * size_of::<i32>()
}

impl Kernel for MatmulInteger {
    fn reads(&self, input: usize) -> bool {
        input == 0 || input == 2
    }

    fn scratch(&self, limits: &[RawTensor]) -> usize {
        let a = &limits[0];
        scratch_bytes(a.dims[..a.rank - 1].iter().product(), self.weights.k)
    }

    fn run(&self, io: &Io<'_>) -> Result<(), String> {
        let w = &*self.weights;
        let rows: usize = io.dims(0)[..io.dims(0).len() - 1].iter().product();
        let out = io.output::<i32>(0);
        if rows == 0 || w.n == 0 {
            return Ok(());
        }
        let shift = if io.inputs[0].dtype == DType::I8 { 0x80 } else { 0 };
        let a = io.bytes(0);
        let stride = w.steps() * STEP;
        let scratch = io.scratch::<u8>();
        let sums_at = (rows * stride).next_multiple_of(LANES);
        io.each(rows, |row| {
            // SAFETY: rows are disjoint, and so are their sums.
            let (to, sum) = unsafe {
                (scratch.range(row * stride, stride), scratch.range(sums_at + 4 * row, 4))
            };
            let from = &a[row * w.k..][..w.k];
            to[..w.k].iter_mut().zip(from).for_each(|(to, &code)| *to = code ^ shift);
            to[w.k..].fill(0);
            if w.shifted {
                let total: i32 = to.iter().map(|&b| i32::from(b)).sum();
                sum.copy_from_slice(&total.to_ne_bytes());
            }
        });
        io.next_phase();
        // SAFETY: the first phase wrote both parts, and nobody writes them now; the sums lie at a
        // multiple of 16 in aligned scratch.
        let (codes, sums) = unsafe {
            (
                std::slice::from_raw_parts(scratch.start().cast_const(), rows * stride),
                std::slice::from_raw_parts(scratch.start().add(sums_at).cast::<i32>(), rows),
            )
        };
        let product = Product {
            w,
            zero: i32::from(io.bytes(2)[0] ^ shift),
            codes,
            sums,
            out: out.start(),
            out_len: out.len(),
        };
        let units = (w.tile_count().div_ceil(TILES), rows.div_ceil(UNIT_ROWS));
        io.each(units.0 * units.1, |unit| {
            let tile = unit % units.0 * TILES;
            let row = unit / units.0 * UNIT_ROWS;
            self.isa.run(Unit {
                product: &product,
                tiles: tile..w.tile_count().min(tile + TILES),
                rows: row..rows.min(row + UNIT_ROWS),
            });
        });
        Ok(())
    }
}

/// The operands of a product.
struct Product<'a> {
    w: &'a Codes,
    /// The zero point of the rows' unsigned bytes.
    zero: i32,
    codes: &'a [u8],
    sums: &'a [i32],
    /// Rows of `n`.
    out: *mut i32,
    out_len: usize,
}

/// Some tiles against some rows; their outputs are the worker's alone.
struct Unit<'a> {
    product: &'a Product<'a>,
    tiles: std::ops::Range<usize>,
    rows: std::ops::Range<usize>,
}

impl SimdOp for Unit<'_> {
    type Output = ();

    #[inline(always)]
    fn eval<S: Isa>(self, s: S) {
        let Unit { product: p, tiles, rows } = self;
        let steps = p.w.steps();
        assert!(p.out_len >= rows.end * p.w.n && p.codes.len() >= rows.end * steps * STEP);
        let mut tile = tiles.start;
        while tile < tiles.end {
            let mut row = rows.start;
            macro_rules! block {
                ($r:literal, $t:literal) => {{
                    let start = p.codes[row * steps * STEP..].as_ptr();
                    let x = Rows { start, row: steps * STEP, step: STEP };
                    // SAFETY: the rows and tiles hold `steps` steps each, as just asserted.
                    let sums = unsafe {
                        sums::<S, $r, $t>(s, p.w.tile(tile), steps * STEP_BYTES, x, steps)
                    };
                    for (t, sums) in sums.into_iter().enumerate() {
                        for (r, sums) in sums.into_iter().enumerate() {
                            p.put(s, tile + r, row + t, sums);
                        }
                    }
                    row += $t;
                }};
            }
            if const { S::WIDE } && tiles.end - tile >= TILES {
                while rows.end - row >= COLUMNS {
                    block!(4, 6);
                }
                while row < rows.end {
                    block!(4, 1);
                }
                tile += TILES;
            } else {
                while rows.end - row >= COLUMNS {
                    block!(1, 6);
                }
                while row < rows.end {
                    block!(1, 1);
                }
                tile += 1;
            }
        }
    }
}

/// Where unsigned bytes of rows lie: 4 of the inner axis side by side, rows and steps so many bytes
/// apart.
#[derive(Clone, Copy)]
struct Rows {
    start: *const u8,
    row: usize,
    step: usize,
}

/// Dot products of `R` tiles with `T` rows.
///
/// # Safety
/// `R` tiles of `steps` steps at `w`, `tile_bytes` apart, and `T` rows of `steps` from `x` are
/// readable.
#[inline(always)]
unsafe fn sums<S: Isa, const R: usize, const T: usize>(
    s: S,
    w: *const u8,
    tile_bytes: usize,
    x: Rows,
    steps: usize,
) -> [[S::I; R]; T] {
    let mut acc = [[s.splat_i(0); R]; T];
    for i in 0..steps {
        // SAFETY: the caller's contract.
        unsafe {
            let mut weights = [s.splat_b(0); R];
            for (r, v) in weights.iter_mut().enumerate() {
                *v = s.load_b(w.add(r * tile_bytes + i * STEP_BYTES));
            }
            for (t, acc) in acc.iter_mut().enumerate() {
                let x = s.load_x(x.start.add(t * x.row + i * x.step).cast());
                for (acc, w) in acc.iter_mut().zip(&weights) {
                    *acc = s.dot_bytes(*acc, *w, x);
                }
            }
        }
    }
    acc
}

impl Product<'_> {
    /// Takes off the zero points, and stores a tile of a row.
    #[inline(always)]
    fn put<S: Isa>(&self, s: S, tile: usize, row: usize, sums: S::I) {
        let (column, w) = (tile * LANES, self.w);
        let y = w.corrected(s, tile, sums, self.zero, self.sums[row]);
        let count = LANES.min(w.n - column);
        // SAFETY: the caller asserted that the output holds `n` columns of the row.
        let to = unsafe { self.out.add(row * w.n + column) };
        if count == LANES {
            // SAFETY: 16 outputs of this row are the worker's.
            unsafe { s.store_i(to, y) };
        } else {
            let lanes = s.to_array_i(y);
            // SAFETY: as above, for `count` of them.
            unsafe { std::slice::from_raw_parts_mut(to, count) }.copy_from_slice(&lanes[..count]);
        }
    }
}
