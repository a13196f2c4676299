//! The product itself: register tiles of 8 output channels by 48 positions.

use cyb_simd::{Isa, LANES, SimdOp};

use super::super::geometry::{Geometry, Layout, Line, PlaneRows};
use crate::activation::Activation;
use crate::io::Io;

/// Output channels whose weights lie side by side.
pub(super) const ROWS_OF_BLOCK: usize = 8;
/// Vectors of positions in a tile.
const VECTORS: usize = 3;
/// Positions of a tile.
pub(super) const COLUMNS: usize = VECTORS * LANES;
/// Rows of input, a tile wide and 5 cache lines at most, that stay in the first-level cache while
/// every block of output channels reads them.
const CACHED_ROWS: usize = 72;

/// Tensors of the output's shape that are added to it. The output may lie where one of them does:
/// an element is read by who then writes it.
#[derive(Clone, Copy)]
pub(super) struct Residuals([*const f32; 2]);

impl Residuals {
    /// Those of a `conv_add`, whose other inputs come first.
    pub(super) fn of(io: &Io<'_>) -> Residuals {
        Residuals([3, 4].map(|i| match io.inputs.get(i) {
            Some(input) => {
                assert_eq!(io.dims(i), io.out_dims(0), "a residual has the output's shape");
                input.start.cast_const().cast()
            }
            None => std::ptr::null(),
        }))
    }

    /// The parts from an element on.
    pub(super) fn from(self, at: usize) -> Residuals {
        Residuals(self.0.map(|p| if p.is_null() { p } else { p.wrapping_add(at) }))
    }

    #[inline(always)]
    pub(super) fn each(self) -> impl Iterator<Item = *const f32> {
        self.0.into_iter().take_while(|p| !p.is_null())
    }
}

/// Writes the planes of a channel.
pub(super) struct Fill<'a> {
    pub(super) layout: &'a Layout,
    pub(super) geometry: &'a Geometry,
    pub(super) from: &'a [f32],
    /// Of the `leaky_relu` that elements go through; 1 where they do not.
    pub(super) slope: f32,
    pub(super) to: &'a mut [f32],
}

impl SimdOp for Fill<'_> {
    type Output = ();

    #[inline(always)]
    fn eval<S: Isa>(self, _: S) {
        let to = self.to.chunks_exact_mut(self.geometry.pitch().max(1));
        let mut rows = Rows { from: self.from, slope: self.slope, to };
        self.layout.walk(self.geometry, &mut rows);
    }
}

/// Writes a part of the planes of all channels of a group, which are lines.
pub(super) struct FillBand<'a> {
    pub(super) layout: &'a Layout,
    /// The channels, each of `channel_len`.
    pub(super) from: &'a [f32],
    pub(super) channel_len: usize,
    pub(super) slope: f32,
    /// The first position.
    pub(super) position: usize,
    /// For each channel `band_len`.
    pub(super) to: &'a mut [f32],
    pub(super) band_len: usize,
}

impl SimdOp for FillBand<'_> {
    type Output = ();

    #[inline(always)]
    fn eval<S: Isa>(self, _: S) {
        let channels = self.from.chunks_exact(self.channel_len);
        for (from, to) in channels.zip(self.to.chunks_exact_mut(self.band_len)) {
            self.layout.fill_line(self.position, from, to);
            bend(to, self.slope);
        }
    }
}

/// `leaky_relu` in place.
#[inline(always)]
fn bend(values: &mut [f32], slope: f32) {
    if slope != 1.0 {
        for v in values {
            *v = if *v > 0.0 { *v } else { slope * *v };
        }
    }
}

struct Rows<'a> {
    from: &'a [f32],
    slope: f32,
    to: std::slice::ChunksExactMut<'a, f32>,
}

impl PlaneRows for Rows<'_> {
    #[inline(always)]
    fn row(&mut self, line: Option<Line>) {
        let Some(row) = self.to.next() else { return };
        let Some(line) = line else { return row.fill(0.0) };
        row[..line.skip].fill(0.0);
        row[line.end..].fill(0.0);
        let row = &mut row[line.skip..line.end];
        spread(line.of(self.from), line.stride, row);
        bend(row, self.slope);
    }
}

/// Every `stride`-th element from the first on.
#[inline(always)]
fn spread(line: &[f32], stride: usize, to: &mut [f32]) {
    match stride {
        1 => to.copy_from_slice(&line[..to.len()]),
        2 => {
            let pairs = line.chunks_exact(2);
            let last = pairs.remainder().first();
            let whole = pairs.len();
            for (slot, pair) in to.iter_mut().zip(pairs) {
                *slot = pair[0];
            }
            if let (Some(slot), Some(&last)) = (to.get_mut(whole), last) {
                *slot = last;
            }
        }
        _ => to.iter_mut().zip(line.iter().step_by(stride)).for_each(|(slot, &v)| *slot = v),
    }
}

/// The outputs of a tile of positions for a chunk of output channels.
pub(super) struct Unit<'a> {
    pub(super) layout: &'a Layout,
    pub(super) geometry: &'a Geometry,
    pub(super) part: usize,
    /// The tile's first position.
    pub(super) position: usize,
    /// The planes of the group's first channel.
    pub(super) planes: *const f32,
    /// The last partial vector of each channel, 16 floats apart; used where planes are the input.
    pub(super) tail: *const f32,
    /// For each (channel, tap) where in the planes position 0 lies.
    pub(super) offsets: &'a [i32],
    /// Blocks of `offsets.len()` by `rows_of_block`.
    pub(super) weights: &'a [f32],
    pub(super) rows_of_block: usize,
    /// Output channels of the chunk.
    pub(super) rows: usize,
    pub(super) bias: Option<&'a [f32]>,
    /// Added before the activation.
    pub(super) residuals: Residuals,
    pub(super) activation: Activation,
    /// Running sums of the worker: blocks of rows of [`COLUMNS`].
    pub(super) sums: *mut f32,
    /// The chunk's first output channel, and the floats from there to the end.
    pub(super) out: *mut f32,
    pub(super) out_floats: usize,
}

impl SimdOp for Unit<'_> {
    type Output = ();

    #[inline(always)]
    fn eval<S: Isa>(self, s: S) {
        let g = self.geometry;
        let left = self.layout.positions(g, self.part) - self.position;
        let mut vectors = left.min(COLUMNS).div_ceil(LANES);
        if !g.direct {
            // SAFETY: positions lie in the planes, and `SLACK` floats lie behind them; offsets
            // lead to the taps of position 0.
            unsafe { self.sum(s, self.planes.wrapping_add(self.position), None, 0, vectors) };
        } else {
            let partial = left < vectors * LANES;
            if partial {
                vectors -= 1;
                // SAFETY: the tail holds 16 floats for each channel.
                unsafe { self.sum(s, self.tail, Some(LANES), vectors, 1) };
            }
            if vectors > 0 {
                // SAFETY: whole vectors lie in the input's channel.
                unsafe { self.sum(s, self.planes.wrapping_add(self.position), None, 0, vectors) };
            }
        }
        self.store(s);
    }
}

impl Unit<'_> {
    /// Sums for `vectors` vectors of the tile from number `first` on. Channels are `apart` where
    /// that is given, else taps lie where the offsets say.
    ///
    /// # Safety
    /// `x` plus any offset is readable for that many vectors.
    #[inline(always)]
    unsafe fn sum<S: Isa>(
        &self,
        s: S,
        x: *const f32,
        apart: Option<usize>,
        first: usize,
        vectors: usize,
    ) {
        let k = self.offsets.len();
        let taps = self.layout.parts[self.part].taps.len().max(1);
        let step = match CACHED_ROWS / self.layout.read_rows {
            0 => 4 * CACHED_ROWS,
            channels => channels * taps,
        };
        let blocks = self.rows.div_ceil(self.rows_of_block);
        let mut from = 0;
        loop {
            let to = k.min(from + step);
            for block in 0..blocks {
                let w = &self.weights[block * k * self.rows_of_block..][..k * self.rows_of_block];
                let start = block * self.rows_of_block * COLUMNS + first * LANES;
                let tile = Tile {
                    w: w[from * self.rows_of_block..].as_ptr(),
                    x: x.wrapping_add(apart.map_or(0, |apart| from * apart)),
                    offsets: self.offsets[from..].as_ptr(),
                    apart,
                    len: to - from,
                    resume: from > 0,
                    sums: self.sums.wrapping_add(start),
                };
                // SAFETY: the caller's contract; weights and offsets have `k` entries, the sums
                // are this worker's alone.
                unsafe {
                    if self.rows_of_block == 1 {
                        tile.rows::<S, 1>(s, vectors);
                    } else {
                        tile.rows::<S, ROWS_OF_BLOCK>(s, vectors);
                    }
                }
            }
            from = to;
            if from == k {
                return;
            }
        }
    }

    /// Adds the bias, activates, and puts the sums where they belong.
    #[inline(always)]
    fn store<S: Isa>(&self, s: S) {
        let mut places = [u32::MAX; COLUMNS];
        let left = (self.layout.positions(self.geometry, self.part) - self.position).min(COLUMNS);
        let places = &mut places[..left];
        self.layout.destinations(self.geometry, self.part, self.position, places);
        let out_len = self.geometry.out_len;
        assert!(self.rows * out_len <= self.out_floats);
        for (vector, places) in places.chunks(LANES).enumerate() {
            let start = places[0];
            let whole = places.len() == LANES
                && start != u32::MAX
                && places[LANES - 1] == start.wrapping_add(LANES as u32 - 1);
            for row in 0..self.rows {
                // SAFETY: the sums hold every row of the chunk.
                let mut v = unsafe { s.load(self.sums.add(row * COLUMNS + vector * LANES)) };
                if let Some(bias) = self.bias {
                    v = s.add(v, s.splat(bias[row]));
                }
                for residual in self.residuals.each() {
                    // SAFETY: the chunk's channels lie there as in the output; a place is inside.
                    let channel = unsafe { residual.add(row * out_len) };
                    let mut lanes = [0f32; LANES];
                    if !whole {
                        for (lane, &place) in lanes.iter_mut().zip(places.iter()) {
                            if place != u32::MAX {
                                // SAFETY: as above.
                                *lane = unsafe { *channel.add(place as usize) };
                            }
                        }
                    }
                    let more = match whole {
                        // SAFETY: as above; a whole vector lies side by side.
                        true => unsafe { s.load(channel.add(start as usize)) },
                        false => s.load_partial(&lanes),
                    };
                    v = s.add(v, more);
                }
                v = self.activation.apply(s, v);
                if whole {
                    // SAFETY: 16 outputs side by side inside the channel; the assertion above
                    // keeps channels inside the output.
                    unsafe { s.store(self.out.add(row * out_len + start as usize), v) };
                } else {
                    let lanes = s.to_array(v);
                    for (&place, lane) in places.iter().zip(lanes) {
                        if place != u32::MAX {
                            // SAFETY: a place is inside the channel.
                            unsafe { *self.out.add(row * out_len + place as usize) = lane };
                        }
                    }
                }
            }
        }
    }
}

/// A register tile's operands.
pub(super) struct Tile {
    /// Weights of the rows, `k` by `k`.
    pub(super) w: *const f32,
    pub(super) x: *const f32,
    /// Where in `x` each `k` lies, unless they are `apart`.
    pub(super) offsets: *const i32,
    pub(super) apart: Option<usize>,
    /// How many `k` there are.
    pub(super) len: usize,
    /// Whether the sums go on from what they are.
    pub(super) resume: bool,
    /// Rows of [`COLUMNS`].
    pub(super) sums: *mut f32,
}

impl Tile {
    /// `R` rows and `vectors` vectors, in the widest register tiles that fit.
    ///
    /// # Safety
    /// Operands are readable over the range, sums are writable.
    #[inline(always)]
    pub(super) unsafe fn rows<S: Isa, const R: usize>(&self, s: S, vectors: usize) {
        // SAFETY: the caller's contract; vectors of a tile lie side by side.
        unsafe {
            if const { S::WIDE || R == 1 } {
                match vectors {
                    3 => self.product::<S, R, R, 3>(s, 0, 0),
                    2 => self.product::<S, R, R, 2>(s, 0, 0),
                    _ => self.product::<S, R, R, 1>(s, 0, 0),
                }
            } else {
                for vector in 0..vectors {
                    self.product::<S, R, 4, 1>(s, 0, vector);
                    self.product::<S, R, 4, 1>(s, 4, vector);
                }
            }
        }
    }

    /// `N` of `R` rows from number `row` on, `V` vectors from number `vector` on.
    ///
    /// # Safety
    /// As above.
    #[inline(always)]
    unsafe fn product<S: Isa, const R: usize, const N: usize, const V: usize>(
        &self,
        s: S,
        row: usize,
        vector: usize,
    ) {
        let mut acc = [[s.splat(0.0); V]; N];
        // SAFETY: the caller's contract.
        unsafe {
            let sums = self.sums.add(row * COLUMNS + vector * LANES);
            if self.resume {
                for (r, acc) in acc.iter_mut().enumerate() {
                    for (v, acc) in acc.iter_mut().enumerate() {
                        *acc = s.load(sums.add(r * COLUMNS + v * LANES));
                    }
                }
            }
            let x = self.x.add(vector * LANES);
            let mut w = self.w.add(row);
            for k in 0..self.len {
                let x = match self.apart {
                    None => x.offset(*self.offsets.add(k) as isize),
                    Some(apart) => x.add(k * apart),
                };
                let mut inputs = [s.splat(0.0); V];
                for (v, input) in inputs.iter_mut().enumerate() {
                    *input = s.load(x.add(v * LANES));
                }
                for (r, acc) in acc.iter_mut().enumerate() {
                    let weight = s.splat(*w.add(r));
                    for (acc, input) in acc.iter_mut().zip(&inputs) {
                        *acc = s.fma(weight, *input, *acc);
                    }
                }
                w = w.add(R);
            }
            for (r, acc) in acc.iter().enumerate() {
                for (v, acc) in acc.iter().enumerate() {
                    s.store(sums.add(r * COLUMNS + v * LANES), *acc);
                }
            }
        }
    }
}
