//! Activations quantised to 8 bits, the input of products with quantised weights.
//!
//! Each run of 32 values of a row becomes integers `q` in `-127..=127` and a scale,
//! `x = scale * q` with `scale = max|x| / 127`, rounded to nearest even. Beside them lie the sums
//! that weight formats with an offset need: an offset `o` that every code of a group shares adds
//! `o * sum(q)` to the group's integer dot product, so products of the sums with each format's
//! offset are kept ready.
//!
//! Rows are stored one after another when there are one or two, else interleaved by four, so that
//! a tile of tokens is one stream.

use cyb_simd::{AnyIsa, Isa, LANES, SimdOp, math};

use crate::team::Worker;

/// Values that share a scale.
pub const BLOCK: usize = 32;
/// Rows that are interleaved when there are many.
pub(super) const INTERLEAVE: usize = 4;
/// Blocks quantised as one unit of work.
const UNIT_BLOCKS: usize = 32;
/// Absolute maxima below this are taken as zero: the inverse of the scale would overflow.
const TINY: f32 = 1e-30;

/// Offset and group length (32 or 16) of every table of `-offset * sum(q)`.
const OFFSETS: [(i32, usize); 14] = [
    (1, 32),
    (8, 32),
    (12, 32),
    (15, 32),
    (16, 32),
    (43, 32),
    (62, 32),
    (128, 32),
    (4, 16),
    (9, 16),
    (12, 16),
    (32, 16),
    (43, 16),
    (128, 16),
];

/// Index in [`OFFSETS`] of an offset and group, `None` for offset 0.
pub(super) const fn offset_table(offset: i32, group: usize) -> Option<usize> {
    let mut i = 0;
    while i < OFFSETS.len() {
        if OFFSETS[i].0 == offset && OFFSETS[i].1 == group {
            return Some(i);
        }
        i += 1;
    }
    assert!(offset == 0, "the offset has no table");
    None
}

/// Which tables a product reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tables(u16);

impl Tables {
    pub const NONE: Tables = Tables(0);
    pub const ALL: Tables = Tables(u16::MAX);

    pub(super) const fn of(table: Option<usize>) -> Tables {
        match table {
            Some(i) => Tables(1 << i),
            None => Tables::NONE,
        }
    }

    #[must_use]
    pub const fn and(self, other: Tables) -> Tables {
        Tables(self.0 | other.0)
    }

    #[inline(always)]
    fn has(self, i: usize) -> bool {
        self.0 >> i & 1 == 1
    }
}

/// Storage for the quantised rows of one input, reused from step to step.
#[derive(Debug)]
pub struct Activations {
    codes: Vec<u64>,
    scales: Vec<f32>,
    sums32: Vec<f32>,
    sums16: Vec<f32>,
    tables: [Vec<i32>; OFFSETS.len()],
    blocks: usize,
}

impl Activations {
    /// Room for `rows` rows of `k` values.
    pub fn new(rows: usize, k: usize) -> Activations {
        let blocks = rows.next_multiple_of(INTERLEAVE) * k.div_ceil(BLOCK);
        Activations {
            codes: vec![0; blocks * BLOCK / 8],
            scales: vec![0.0; blocks],
            sums32: vec![0.0; blocks],
            sums16: vec![0.0; 2 * blocks],
            tables: OFFSETS.map(|(_, group)| vec![0; blocks * BLOCK / group]),
            blocks,
        }
    }

    #[cfg(test)]
    pub(super) fn debug_scales(&self) -> &[f32] {
        &self.scales
    }

    /// Bytes that [`ActivationRows::over`] needs for `rows` rows of `k` values with the tables
    /// `wanted`.
    pub fn bytes(rows: usize, k: usize, wanted: Tables) -> usize {
        let blocks = rows.next_multiple_of(INTERLEAVE) * k.div_ceil(BLOCK);
        let wanted = OFFSETS.iter().enumerate().filter(|(i, _)| wanted.has(*i));
        let tables: usize = wanted.map(|(_, (_, group))| BLOCK / group).sum();
        blocks * (BLOCK + size_of::<f32>() * (1 + 1 + 2 + tables))
    }

    /// The rows as workers fill and read them.
    ///
    /// # Panics
    /// There is no room for so many, or `k` is not whole blocks of 32.
    pub fn rows(&mut self, rows: usize, k: usize) -> ActivationRows<'_> {
        assert!(k.is_multiple_of(BLOCK), "rows of {k} are not blocks of {BLOCK}");
        let blocks = k / BLOCK;
        let interleave = if rows <= 2 { 1 } else { INTERLEAVE };
        assert!(rows.next_multiple_of(interleave) * blocks <= self.blocks, "too many activations");
        ActivationRows {
            codes: self.codes.as_mut_ptr().cast(),
            scales: self.scales.as_mut_ptr(),
            sums32: self.sums32.as_mut_ptr(),
            sums16: self.sums16.as_mut_ptr(),
            tables: self.tables.each_mut().map(|t| t.as_mut_ptr()),
            wanted: Tables::ALL,
            rows,
            blocks,
            interleave,
            _owner: std::marker::PhantomData,
        }
    }
}

/// Quantised rows in shape for one product, shared by the workers of a team.
#[derive(Clone, Copy, Debug)]
pub struct ActivationRows<'a> {
    codes: *mut i8,
    scales: *mut f32,
    sums32: *mut f32,
    sums16: *mut f32,
    tables: [*mut i32; OFFSETS.len()],
    /// Those that are filled; there is no place for others.
    wanted: Tables,
    rows: usize,
    blocks: usize,
    interleave: usize,
    _owner: std::marker::PhantomData<&'a mut Activations>,
}

// SAFETY: it borrows the storage exclusively; writes through it happen in `unsafe` functions whose
// contracts keep workers apart.
unsafe impl Send for ActivationRows<'_> {}
// SAFETY: as above.
unsafe impl Sync for ActivationRows<'_> {}

/// What is quantised.
#[derive(Clone, Copy, Debug)]
pub enum Source<'a> {
    /// The values.
    Plain(&'a [f32]),
    /// `activation(gate) * up`.
    Gated { gate: &'a [f32], up: &'a [f32], activation: Gate },
}

/// An activation that gates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    Silu,
    GeluErf,
    GeluTanh,
    GeluQuick,
}

impl Gate {
    #[inline(always)]
    fn apply<S: Isa>(self, s: S, x: S::F) -> S::F {
        match self {
            Gate::Silu => math::silu(s, x),
            Gate::GeluErf => math::gelu_erf(s, x),
            Gate::GeluTanh => math::gelu_tanh(s, x),
            Gate::GeluQuick => math::gelu_quick(s, x),
        }
    }

    /// `out = activation(gate) * up`, element by element.
    pub(crate) fn multiply(self, isa: AnyIsa, gate: &[f32], up: &[f32], out: &mut [f32]) {
        isa.run(Multiply { activation: self, gate, up, out });
    }
}

struct Multiply<'a> {
    activation: Gate,
    gate: &'a [f32],
    up: &'a [f32],
    out: &'a mut [f32],
}

impl SimdOp for Multiply<'_> {
    type Output = ();

    #[inline(always)]
    fn eval<S: Isa>(self, s: S) {
        let parts = self.gate.chunks(LANES).zip(self.up.chunks(LANES));
        for ((gate, up), out) in parts.zip(self.out.chunks_mut(LANES)) {
            let gated = self.activation.apply(s, s.load_partial(gate));
            s.store_partial(out, s.mul(gated, s.load_partial(up)));
        }
    }
}

/// Where a tile of rows begins, for a kernel.
#[derive(Clone, Copy, Debug)]
pub(super) struct TilePtr {
    pub(super) codes: *const i8,
    pub(super) scales: *const f32,
    pub(super) sums32: *const f32,
    pub(super) sums16: *const f32,
    pub(super) table: *const i32,
}

impl<'a> ActivationRows<'a> {
    /// Rows over memory of the caller's, in shape for products that read the tables `wanted`.
    ///
    /// # Safety
    /// `start` is aligned to 64 and valid for `bytes` bytes for `'a`, and nothing but the workers
    /// of the product accesses them.
    ///
    /// # Panics
    /// There are fewer than [`Activations::bytes`], or `k` is not whole blocks of 32.
    pub unsafe fn over(
        start: *mut u8,
        bytes: usize,
        rows: usize,
        k: usize,
        wanted: Tables,
    ) -> ActivationRows<'a> {
        assert!(bytes >= Activations::bytes(rows, k, wanted), "the memory is too small");
        assert!(k.is_multiple_of(BLOCK), "rows of {k} are not blocks of {BLOCK}");
        let interleave = if rows <= 2 { 1 } else { INTERLEAVE };
        let blocks = rows.next_multiple_of(INTERLEAVE) * (k / BLOCK);
        let mut at = blocks * BLOCK;
        let mut take = |words: usize| {
            let part = start.wrapping_add(at);
            at += words * size_of::<f32>();
            part
        };
        ActivationRows {
            codes: start.cast(),
            scales: take(blocks).cast(),
            sums32: take(blocks).cast(),
            sums16: take(2 * blocks).cast(),
            tables: std::array::from_fn(|i| match wanted.has(i) {
                true => take(blocks * BLOCK / OFFSETS[i].1).cast(),
                false => std::ptr::null_mut(),
            }),
            wanted,
            rows,
            blocks: k / BLOCK,
            interleave,
            _owner: std::marker::PhantomData,
        }
    }

    pub fn rows(&self) -> usize {
        self.rows
    }

    pub fn k(&self) -> usize {
        self.blocks * BLOCK
    }

    /// Whether a product may read these tables.
    pub(super) fn has(&self, tables: Tables) -> bool {
        self.wanted.0 & tables.0 == tables.0
    }

    pub(super) fn blocks(&self) -> usize {
        self.blocks
    }

    /// The group of interleaved rows that begins at `row`, from `block` on, with the sums for
    /// groups of `group` values and the table `table`.
    ///
    /// # Safety
    /// `row` is below `rows` and a multiple of the interleave; `block` is below `blocks`.
    #[inline(always)]
    pub(super) unsafe fn tile(
        &self,
        row: usize,
        block: usize,
        group: usize,
        table: Option<usize>,
    ) -> TilePtr {
        let at = row * self.blocks + block * self.interleave;
        let at_group = at * (BLOCK / group);
        // SAFETY: all offsets are inside the storage, which holds `rows * blocks` blocks.
        unsafe {
            TilePtr {
                codes: self.codes.add(at * BLOCK),
                scales: self.scales.add(at),
                sums32: self.sums32.add(at),
                sums16: self.sums16.add(2 * at),
                table: match table {
                    Some(i) => self.tables[i].add(at_group),
                    None => std::ptr::null(),
                },
            }
        }
    }

    /// Quantises this worker's share of the rows; row `i` starts at `i * stride` of the source.
    ///
    /// # Safety
    /// Every worker of the run calls this with the same arguments, and nobody reads the rows
    /// before all have passed a barrier after it.
    ///
    /// # Panics
    /// The source is too short.
    pub unsafe fn quantize(
        &self,
        isa: AnyIsa,
        source: Source<'_>,
        stride: usize,
        worker: &Worker<'_>,
    ) {
        let need = (self.rows.max(1) - 1) * stride + if self.rows == 0 { 0 } else { self.k() };
        match source {
            Source::Plain(x) => assert!(x.len() >= need, "the input is too short"),
            Source::Gated { gate, up, .. } => {
                assert!(gate.len() >= need && up.len() >= need, "the input is too short");
            }
        }
        isa.run(Quantize { to: *self, source, stride, worker: *worker });
    }
}

struct Quantize<'a> {
    to: ActivationRows<'a>,
    source: Source<'a>,
    stride: usize,
    worker: Worker<'a>,
}

impl SimdOp for Quantize<'_> {
    type Output = ();

    #[inline(always)]
    fn eval<S: Isa>(self, s: S) {
        let to = &self.to;
        let padded = to.rows.next_multiple_of(to.interleave);
        let units_per_row = to.blocks.div_ceil(UNIT_BLOCKS);
        for unit in self.worker.share(padded * units_per_row) {
            let (row, first) = (unit / units_per_row, unit % units_per_row * UNIT_BLOCKS);
            for block in first..(first + UNIT_BLOCKS).min(to.blocks) {
                let (a, b) = if row >= to.rows {
                    (s.splat(0.0), s.splat(0.0))
                } else {
                    let at = row * self.stride + block * BLOCK;
                    // SAFETY: `quantize` checked that the source holds every row.
                    unsafe {
                        match self.source {
                            Source::Plain(x) => {
                                let p = x.as_ptr().add(at);
                                (s.load(p), s.load(p.add(LANES)))
                            }
                            Source::Gated { gate, up, activation } => {
                                let (g, u) = (gate.as_ptr().add(at), up.as_ptr().add(at));
                                let low = s.mul(activation.apply(s, s.load(g)), s.load(u));
                                let (g, u) = (g.add(LANES), u.add(LANES));
                                (low, s.mul(activation.apply(s, s.load(g)), s.load(u)))
                            }
                        }
                    }
                };
                // SAFETY: `row` and `block` are in range, and units are disjoint.
                unsafe { quantize_block(s, to, row, block, a, b) };
            }
        }
    }
}

/// # Safety
/// `row` is below the padded number of rows, `block` below `blocks`, and nobody else accesses them.
#[inline(always)]
unsafe fn quantize_block<S: Isa>(
    s: S,
    to: &ActivationRows<'_>,
    row: usize,
    block: usize,
    a: S::F,
    b: S::F,
) {
    // As integers the bits of magnitudes order like the magnitudes, with NaN on top: a row with
    // NaN or infinity gets a scale of NaN or infinity, and so do its products.
    let sign_free = s.splat_i(0x7fff_ffff);
    let bits = s.max_i(s.and_i(s.bits(a), sign_free), s.and_i(s.bits(b), sign_free));
    let max = f32::from_bits(s.reduce_max_i(bits).cast_unsigned());
    let (scale, inverse) = if max < TINY { (0.0, 0.0) } else { (max / 127.0, 127.0 / max) };
    let inverse = s.splat(inverse);
    let (qa, qb) = (s.to_int(s.mul(a, inverse)), s.to_int(s.mul(b, inverse)));
    let (sum_a, sum_b) = (s.reduce_sum_i(qa), s.reduce_sum_i(qb));

    let lane = row % to.interleave;
    let at = (row - lane) * to.blocks + block * to.interleave + lane;
    let at16 = (row - lane) * to.blocks * 2 + block * to.interleave * 2 + lane;
    // SAFETY: the offsets are inside the storage.
    unsafe {
        let codes = to.codes.add(at * BLOCK);
        s.store_i8(codes, qa);
        s.store_i8(codes.add(LANES), qb);
        *to.scales.add(at) = scale;
        *to.sums32.add(at) = scale * (sum_a.wrapping_add(sum_b)) as f32;
        *to.sums16.add(at16) = scale * sum_a as f32;
        *to.sums16.add(at16 + to.interleave) = scale * sum_b as f32;
        for (i, (table, (offset, group))) in to.tables.iter().zip(OFFSETS).enumerate() {
            if !to.wanted.has(i) {
                continue;
            }
            if group == 32 {
                *table.add(at) = sum_a.wrapping_add(sum_b).wrapping_mul(-offset);
            } else {
                *table.add(at16) = sum_a.wrapping_mul(-offset);
                *table.add(at16 + to.interleave) = sum_b.wrapping_mul(-offset);
            }
        }
    }
}
