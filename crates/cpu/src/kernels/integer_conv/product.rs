//! The product itself: register tiles of 8 output channels by 48 positions.

use cyb_simd::{Isa, LANES, SimdOp};

use super::super::geometry::{Geometry, Layout, Line, PlaneRows};
use super::super::integer::STEP;
use crate::io::Shared;

/// Output channels whose weights lie side by side.
pub(super) const ROWS_OF_BLOCK: usize = 8;
/// Vectors of positions in a tile.
const VECTORS: usize = 3;
/// Positions of a tile.
pub(super) const COLUMNS: usize = VECTORS * LANES;

/// Writes the planes of four channels.
pub(super) struct Fill<'a> {
    pub(super) layout: &'a Layout,
    pub(super) geometry: &'a Geometry,
    pub(super) from: [&'a [u8]; STEP],
    pub(super) to: &'a mut [i32],
    /// What padding holds.
    pub(super) zero: u8,
    /// What makes codes unsigned bytes.
    pub(super) shift: u8,
}

impl SimdOp for Fill<'_> {
    type Output = ();

    #[inline(always)]
    fn eval<S: Isa>(self, _: S) {
        let [zero, shift] =
            [self.zero ^ self.shift, self.shift].map(|b| i32::from_ne_bytes([b; 4]));
        if self.geometry.direct {
            return interleave(self.from, 1, shift, self.to);
        }
        let to = self.to.chunks_exact_mut(self.geometry.pitch().max(1));
        self.layout.walk(self.geometry, &mut Rows { from: self.from, to, zero, shift });
    }
}

struct Rows<'a> {
    from: [&'a [u8]; STEP],
    to: std::slice::ChunksExactMut<'a, i32>,
    zero: i32,
    shift: i32,
}

impl PlaneRows for Rows<'_> {
    #[inline(always)]
    fn row(&mut self, line: Option<Line>) {
        let Some(row) = self.to.next() else { return };
        let Some(line) = line else { return row.fill(self.zero) };
        row[..line.skip].fill(self.zero);
        row[line.end..].fill(self.zero);
        let [a, b, c, d] = self.from;
        let lines = [line.of(a), line.of(b), line.of(c), line.of(d)];
        interleave(lines, line.stride, self.shift, &mut row[line.skip..line.end]);
    }
}

/// Four lines' codes side by side, every `stride`-th of them.
#[inline(always)]
fn interleave(lines: [&[u8]; STEP], stride: usize, shift: i32, to: &mut [i32]) {
    macro_rules! each {
        ($stride:expr) => {{
            let len = (to.len().max(1) - 1) * $stride + 1;
            let [a, b, c, d] = lines;
            let (a, b, c, d) = (&a[..len], &b[..len], &c[..len], &d[..len]);
            for (i, word) in to.iter_mut().enumerate() {
                let at = i * $stride;
                let low = u32::from(a[at]) | u32::from(b[at]) << 8;
                let high = u32::from(c[at]) << 16 | u32::from(d[at]) << 24;
                *word = (low | high).cast_signed() ^ shift;
            }
        }};
    }
    const { assert!(STEP == 4 && cfg!(target_endian = "little")) };
    match stride {
        1 => each!(1),
        2 => each!(2),
        _ => each!(stride),
    }
}

/// How exact sums become codes.
#[derive(Debug)]
pub(super) struct Rescale {
    /// For each output channel.
    pub(super) offsets: Vec<i32>,
    pub(super) factors: Vec<f32>,
    pub(super) bias: Option<Vec<f32>>,
    pub(super) scale: f32,
    pub(super) zero: i32,
    pub(super) low: i32,
    pub(super) high: i32,
    pub(super) table: Option<[u8; 256]>,
}

/// What is known of the channels of a unit besides their weights.
pub(super) struct Epilogue<'a> {
    /// Weights that sum a window, where its sum is needed.
    pub(super) ones: Option<&'a Vec<i8>>,
    /// Of each channel from the unit's first on: the sum of its weights, and their zero point.
    pub(super) sums: &'a [i32],
    pub(super) zeros: &'a [i32],
    /// The number of the first channel.
    pub(super) first_row: usize,
    /// The zero point of the unsigned bytes.
    pub(super) x_zero: i32,
    /// Elements of a window.
    pub(super) window: i32,
}

/// Where the results of a unit's channels go, one after the other.
pub(super) enum Store<'a> {
    Sums(Shared<'a, i32>),
    Codes(&'a Rescale, Shared<'a, u8>),
}

/// The outputs of a tile of positions for some output channels.
pub(super) struct Unit<'a> {
    pub(super) layout: &'a Layout,
    pub(super) geometry: &'a Geometry,
    /// The tile's first position.
    pub(super) position: usize,
    /// The planes of the group's first quad.
    pub(super) planes: *const i32,
    /// For each quad and tap where in the planes position 0 lies.
    pub(super) offsets: &'a [i32],
    /// Blocks of `offsets.len()` by `rows_of_block` by 4.
    pub(super) weights: &'a [i8],
    pub(super) rows_of_block: usize,
    pub(super) rows: usize,
    pub(super) epilogue: Epilogue<'a>,
    pub(super) store: Store<'a>,
}

/// Positions side by side whose outputs are so too.
#[derive(Clone, Copy, Default)]
struct Run {
    lane: usize,
    len: usize,
    /// The first output's place in a channel.
    place: usize,
}

type Sums = [[i32; COLUMNS]; ROWS_OF_BLOCK];

impl SimdOp for Unit<'_> {
    type Output = ();

    #[inline(always)]
    fn eval<S: Isa>(self, s: S) {
        let g = self.geometry;
        let left = (self.layout.positions(g, 0) - self.position).min(COLUMNS);
        let vectors = left.div_ceil(LANES);
        let (runs, n_runs) = self.runs(left);
        let runs = &runs[..n_runs];
        let mut sums: Sums = [[0; COLUMNS]; ROWS_OF_BLOCK];
        let mut windows = [0; COLUMNS];
        if let Some(ones) = self.epilogue.ones {
            // SAFETY: as for blocks below; the ones have a step's bytes for each offset.
            unsafe { self.product::<S, 1, 1, VECTORS>(s, ones.as_ptr(), 0, 0, &mut sums) };
            // K z - sum(x), of bytes less the bias.
            let of_zero = self.epilogue.window.wrapping_mul(self.epilogue.x_zero - S::BYTE_BIAS);
            for (window, sum) in windows.iter_mut().zip(&sums[0]) {
                *window = of_zero.wrapping_sub(*sum);
            }
        }
        let block_len = self.offsets.len() * self.rows_of_block * STEP;
        for first in (0..self.rows).step_by(self.rows_of_block) {
            let w = &self.weights[first / self.rows_of_block * block_len..][..block_len];
            // SAFETY: positions lie in the planes, and words behind them; offsets lead to the taps
            // of position 0. A block holds its channels' bytes for each offset.
            unsafe {
                if self.rows_of_block == 1 {
                    self.block::<S, 1>(s, w.as_ptr(), vectors, &mut sums);
                } else {
                    self.block::<S, ROWS_OF_BLOCK>(s, w.as_ptr(), vectors, &mut sums);
                }
            }
            let end = self.rows.min(first + self.rows_of_block);
            for (row, sums) in (first..end).zip(&mut sums) {
                self.finish(s, row, vectors, sums, &windows, runs);
            }
        }
    }
}

impl Unit<'_> {
    /// The runs of the tile's positions, whose outputs follow one another.
    #[inline(always)]
    fn runs(&self, left: usize) -> ([Run; COLUMNS], usize) {
        let mut places = [u32::MAX; COLUMNS];
        let places = &mut places[..left];
        self.layout.destinations(self.geometry, 0, self.position, places);
        let (mut runs, mut count) = ([Run::default(); COLUMNS], 0);
        let mut before = u32::MAX;
        for (lane, &place) in places.iter().enumerate() {
            if place != u32::MAX {
                if before == u32::MAX {
                    runs[count] = Run { lane, len: 0, place: place as usize };
                    count += 1;
                }
                runs[count - 1].len += 1;
            }
            before = place;
        }
        (runs, count)
    }

    /// The sums of a block of `R` channels, in the widest register tiles that fit.
    ///
    /// # Safety
    /// `w` holds `R` channels' bytes for each offset; the planes are readable at every offset from the
    /// tile's first position on, for that many vectors.
    #[inline(always)]
    unsafe fn block<S: Isa, const R: usize>(
        &self,
        s: S,
        w: *const i8,
        vectors: usize,
        sums: &mut Sums,
    ) {
        // SAFETY: the caller's contract.
        unsafe {
            if const { S::WIDE || R == 1 } {
                match vectors {
                    3 => self.product::<S, R, R, 3>(s, w, 0, 0, sums),
                    2 => self.product::<S, R, R, 2>(s, w, 0, 0, sums),
                    _ => self.product::<S, R, R, 1>(s, w, 0, 0, sums),
                }
            } else {
                for vector in 0..vectors {
                    self.product::<S, R, 4, 1>(s, w, 0, vector, sums);
                    self.product::<S, R, 4, 1>(s, w, 4, vector, sums);
                }
            }
        }
    }

    /// `N` of `R` channels from number `row` on, `V` vectors from number `vector` on.
    ///
    /// # Safety
    /// As above.
    #[inline(always)]
    unsafe fn product<S: Isa, const R: usize, const N: usize, const V: usize>(
        &self,
        s: S,
        w: *const i8,
        row: usize,
        vector: usize,
        sums: &mut Sums,
    ) {
        let mut acc = [[s.splat_i(0); V]; N];
        let x = self.planes.wrapping_add(self.position + vector * LANES);
        // SAFETY: the caller's contract.
        unsafe {
            let mut w = w.add(row * STEP);
            for &offset in self.offsets {
                let x = x.offset(offset as isize);
                let mut inputs = [s.splat_b(0); V];
                for (v, input) in inputs.iter_mut().enumerate() {
                    *input = s.load_b(x.add(v * LANES).cast());
                }
                for (r, acc) in acc.iter_mut().enumerate() {
                    let weights = s.load_x(w.add(r * STEP));
                    for (acc, input) in acc.iter_mut().zip(&inputs) {
                        *acc = s.dot_codes(*acc, *input, weights);
                    }
                }
                w = w.add(R * STEP);
            }
            for (acc, sums) in acc.iter().zip(&mut sums[row..]) {
                for (v, acc) in acc.iter().enumerate() {
                    s.store_i(sums[(vector + v) * LANES..].as_mut_ptr(), *acc);
                }
            }
        }
    }

    /// Takes off the zero points of a channel's sums, and puts what they become where it belongs.
    #[inline(always)]
    fn finish<S: Isa>(
        &self,
        s: S,
        row: usize,
        vectors: usize,
        sums: &mut [i32; COLUMNS],
        windows: &[i32; COLUMNS],
        runs: &[Run],
    ) {
        let e = &self.epilogue;
        let channel = row * self.geometry.out_len;
        let mut offset = e.sums[row].wrapping_mul(S::BYTE_BIAS - e.x_zero);
        if let Store::Codes(rescale, _) = &self.store {
            offset = offset.wrapping_add(rescale.offsets[e.first_row + row]);
        }
        let (offset, zero) = (s.splat_i(offset), s.splat_i(e.zeros[row]));
        let mut codes = [0u8; COLUMNS + LANES];
        for at in (0..vectors * LANES).step_by(LANES) {
            // SAFETY: both arrays hold whole vectors.
            let (y, windows) =
                unsafe { (s.load_i(sums[at..].as_ptr()), s.load_i(windows[at..].as_ptr())) };
            let mut y = s.add_i(y, offset);
            if e.ones.is_some() {
                y = s.add_i(y, s.mul_i(zero, windows));
            }
            match &self.store {
                // SAFETY: as above.
                Store::Sums(_) => unsafe { s.store_i(sums[at..].as_mut_ptr(), y) },
                Store::Codes(rescale, _) => {
                    let y = rescale.codes(s, e.first_row + row, y);
                    // SAFETY: the array holds a vector more.
                    unsafe { s.store_i8(codes[at..].as_mut_ptr().cast(), y) };
                }
            }
        }
        match &self.store {
            Store::Sums(out) => {
                for run in runs {
                    // SAFETY: the outputs of a tile of a channel are this worker's.
                    let to = unsafe { out.range(channel + run.place, run.len) };
                    to.copy_from_slice(&sums[run.lane..run.lane + run.len]);
                }
            }
            Store::Codes(_, out) => {
                let Some(last) = runs.last() else { return };
                let end = last.place + last.len;
                for run in runs {
                    for done in (0..run.len).step_by(LANES) {
                        let (lane, place) = (run.lane + done, run.place + done);
                        // A copy of fixed length is one instruction; what it writes too much is
                        // written again, with the runs to come.
                        if place + LANES <= end {
                            // SAFETY: the outputs of a tile of a channel follow one another and
                            // are this worker's.
                            let to = unsafe { out.range(channel + place, LANES) };
                            to.copy_from_slice(&codes[lane..lane + LANES]);
                        } else {
                            let len = LANES.min(run.len - done);
                            // SAFETY: as above.
                            let to = unsafe { out.range(channel + place, len) };
                            to.copy_from_slice(&codes[lane..lane + len]);
                        }
                    }
                }
            }
        }
    }
}

impl Rescale {
    /// Codes of a channel's sums.
    #[inline(always)]
    fn codes<S: Isa>(&self, s: S, channel: usize, sums: S::I) -> S::I {
        let mut y = s.mul(s.to_float(sums), s.splat(self.factors[channel]));
        if let Some(bias) = &self.bias {
            y = s.add(y, s.splat(bias[channel]));
        }
        if self.scale != 1.0 {
            y = s.div(y, s.splat(self.scale));
        }
        // Limits that are whole numbers may come before rounding.
        let (low, high) = ((self.low - self.zero) as f32, (self.high - self.zero) as f32);
        let y = s.to_int(s.min(s.max(y, s.splat(low)), s.splat(high)));
        let y = s.add_i(y, s.splat_i(self.zero));
        match &self.table {
            Some(table) => s.lookup_i(table, s.and_i(y, s.splat_i(0xff))),
            None => y,
        }
    }
}
