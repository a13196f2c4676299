//! Weights in the layout of `kernels/packed.cuh`: tiles of 16 rows, in records of some units of 64
//! columns, ordered as the lanes of a warp read them.
//!
//! Every quantised format becomes one of a few storage kinds: codes of 4, 5, 6 or 8 bits in groups
//! of 16 or 32, with scales stored as exactly as the format has them. Formats without a kind of
//! their own are stored as 8-bit codes with `f32` scales. Float weights become f16, each row scaled
//! by a power of two, `f32` ones two f16 each.

use cyb_tensor::quant::{Codes, codes, group_size, has_offsets};
use cyb_tensor::{Class, DType};
use half::{bf16, f16};

/// Rows of a tile.
pub(crate) const TILE: usize = 16;
/// Columns of a unit.
const UNIT: usize = 64;

/// How scales are stored; the names are those of `packed.cuh`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scales {
    F16,
    F16Min,
    SuperMin,
    Super,
    F32,
    F32Min,
    Row,
}

/// A storage kind: what one compiled module of `linear.cu` reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kind {
    /// The module for few tokens, or on any GPU.
    pub(crate) module: &'static str,
    /// The module for many tokens, on Hopper.
    pub(crate) wide: &'static str,
    bits: usize,
    group: usize,
    scales: Scales,
    /// Units that are of the same columns: 2 where a float needs two f16.
    planes: usize,
}

macro_rules! kind {
    ($name:literal, $bits:literal, $group:literal, $scales:expr) => {
        kind!($name, $bits, $group, $scales, 1)
    };
    ($name:literal, $bits:literal, $group:literal, $scales:expr, $planes:literal) => {
        Kind {
            module: concat!("linear_", $name),
            wide: concat!("wide_", $name),
            bits: $bits,
            group: $group,
            scales: $scales,
            planes: $planes,
        }
    };
}

impl Kind {
    /// The kind for a dtype of weights.
    pub(crate) fn of(dtype: DType) -> Option<Kind> {
        Some(match dtype {
            DType::F16 | DType::BF16 => kind!("half", 16, 32, Scales::Row),
            DType::F32 => kind!("float", 16, 32, Scales::Row, 2),
            other if other.class() != Class::Quantized => return None,
            DType::Q4_0 => kind!("q4_0", 4, 32, Scales::F16),
            DType::Q4_1 => kind!("q4_1", 4, 32, Scales::F16Min),
            DType::Q5_0 => kind!("q5_0", 5, 32, Scales::F16),
            DType::Q5_1 => kind!("q5_1", 5, 32, Scales::F16Min),
            DType::Q8_0 => kind!("q8_0", 8, 32, Scales::F16),
            DType::Q4_K => kind!("q4_k", 4, 32, Scales::SuperMin),
            DType::Q5_K => kind!("q5_k", 5, 32, Scales::SuperMin),
            DType::Q6_K => kind!("q6_k", 6, 16, Scales::Super),
            other => match (group_size(other) == 16, has_offsets(other)) {
                (false, false) => kind!("g32", 8, 32, Scales::F32),
                (true, false) => kind!("g16", 8, 16, Scales::F32),
                (false, true) => kind!("g32m", 8, 32, Scales::F32Min),
                (true, true) => kind!("g16m", 8, 16, Scales::F32Min),
            },
        })
    }

    /// Whether the weights are floats.
    pub(crate) fn is_float(&self) -> bool {
        self.scales == Scales::Row
    }

    /// Units that are of the same columns.
    pub(crate) fn planes(&self) -> usize {
        self.planes
    }

    /// Units of a chunk.
    pub(crate) fn units(&self) -> usize {
        match self.scales {
            Scales::SuperMin | Scales::Super => 4,
            _ => 2,
        }
    }

    /// Columns of a chunk: what a warp does at a time.
    pub(crate) fn chunk(&self) -> usize {
        self.units() / self.planes * UNIT
    }

    /// Bytes a chunk of a tile takes: low codes, further bits, scales, factors of scales.
    fn parts(&self) -> [usize; 4] {
        let units = self.units();
        let low = units * 512 * [1, 2, 4][usize::from(self.bits >= 8) + usize::from(self.bits > 8)];
        let high = units * [0, 128, 256][if self.bits < 8 { self.bits - 4 } else { 0 }];
        let per_row = 2 * 32 / self.group;
        let (scales, supers) = match self.scales {
            Scales::F16 => (units * 64, 0),
            Scales::F16Min => (units * 128, 0),
            Scales::SuperMin => (256, 64),
            Scales::Super => (256, 32),
            Scales::F32 => (units * TILE * per_row * 4, 0),
            Scales::F32Min => (units * TILE * per_row * 8, 0),
            Scales::Row => (0, 0),
        };
        [low, high, scales, supers]
    }

    /// Bytes of a record.
    pub(crate) fn record(&self) -> usize {
        self.parts().iter().sum()
    }

    /// Bytes of shared memory that one row of activations takes in `product_1`.
    pub(crate) fn row_bytes(&self, chunks: usize) -> usize {
        let groups = chunks * self.units() * 2;
        match self.scales {
            Scales::Row => chunks * self.chunk() * 4,
            Scales::F32Min if self.group == 16 => groups * 44,
            _ => groups * 40,
        }
    }
}

/// Bytes of a matrix of `n` rows and `k` columns when it is packed.
pub(crate) fn packed_bytes(dtype: DType, n: usize, k: usize) -> Option<usize> {
    let kind = Kind::of(dtype)?;
    let tile = kind.record().checked_mul(k.div_ceil(kind.chunk()))?;
    let scales = if kind.is_float() { TILE * 4 } else { 0 };
    n.div_ceil(TILE).checked_mul(tile.checked_add(scales)?)
}

/// Matrices of one kind and width behind each other, packed.
#[derive(Debug)]
pub(crate) struct Packed {
    pub(crate) tiles: usize,
    pub(crate) chunks: usize,
    /// Records, tile by tile.
    pub(crate) bytes: Vec<u8>,
    /// For float weights, what takes back the power of two of each row of the tiles.
    pub(crate) row_scales: Vec<f32>,
}

/// A matrix to pack: its rows, and their bytes in the file's layout.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rows<'a> {
    pub(crate) dtype: DType,
    pub(crate) n: usize,
    pub(crate) bytes: &'a [u8],
}

/// Packs matrices of one kind; each begins a tile. With `paired` the tiles of two matrices of the
/// same height alternate. Tiles are spread over `threads`.
pub(crate) fn pack(
    kind: Kind,
    k: usize,
    parts: &[Rows<'_>],
    paired: bool,
    threads: usize,
) -> Packed {
    let chunks = k.div_ceil(kind.chunk());
    let tiles: usize = parts.iter().map(|p| p.n.div_ceil(TILE)).sum();
    let tile_bytes = kind.record() * chunks;
    let mut bytes = vec![0u8; tile_bytes * tiles];
    let mut row_scales = vec![1f32; if kind.is_float() { tiles * TILE } else { 0 }];
    let share = tiles.div_ceil(threads.max(1)).max(1);
    let scales_share = if kind.is_float() { share * TILE } else { 1 };
    std::thread::scope(|scope| {
        let mut row_scales = row_scales.chunks_mut(scales_share);
        for (number, out) in bytes.chunks_mut((share * tile_bytes).max(1)).enumerate() {
            let scales = row_scales.next().unwrap_or_default();
            scope.spawn(move || {
                let mut row = Row::new(&kind, k, chunks);
                let mut planes = kind.parts().map(|bytes| vec![0u8; bytes * chunks]);
                for (at, out) in out.chunks_mut(tile_bytes).enumerate() {
                    planes.iter_mut().for_each(|plane| plane.fill(0));
                    for r in 0..TILE {
                        let found = find_row(parts, k, paired, number * share + at, r);
                        let Some((dtype, bytes)) = found else { continue };
                        if let Some(scale) = scales.get_mut(at * TILE + r) {
                            *scale = row.store_floats(&kind, dtype, bytes, r, &mut planes[0]);
                            continue;
                        }
                        row.decode(&kind, dtype, bytes);
                        let [low, high, scales, supers] = &mut planes;
                        row.store(&kind, r, &mut Planes { low, high, scales, supers });
                    }
                    for (chunk, record) in out.chunks_mut(kind.record()).enumerate() {
                        let mut rest = record;
                        for (plane, size) in planes.iter().zip(kind.parts()) {
                            let (part, after) = rest.split_at_mut(size);
                            part.copy_from_slice(&plane[chunk * size..][..size]);
                            rest = after;
                        }
                    }
                }
            });
        }
    });
    Packed { tiles, chunks, bytes, row_scales }
}

/// Row `r` of tile `tile`, unless it is past the end of its matrix.
fn find_row<'a>(
    parts: &[Rows<'a>],
    k: usize,
    paired: bool,
    mut tile: usize,
    r: usize,
) -> Option<(DType, &'a [u8])> {
    let of_part = |part: &Rows<'a>, tile: usize| {
        let row = tile * TILE + r;
        let stride = part.dtype.bytes_for(k)?;
        (row < part.n).then(|| (part.dtype, &part.bytes[row * stride..][..stride]))
    };
    if paired {
        return of_part(&parts[tile % 2], tile / 2);
    }
    for part in parts {
        let tiles = part.n.div_ceil(TILE);
        if tile < tiles {
            return of_part(part, tile);
        }
        tile -= tiles;
    }
    None
}

struct Planes<'a> {
    low: &'a mut [u8],
    high: &'a mut [u8],
    scales: &'a mut [u8],
    supers: &'a mut [u8],
}

/// A row as codes and scales, padded to whole chunks.
struct Row {
    codes: Vec<i8>,
    scales: Vec<f32>,
    offsets: Vec<f32>,
    /// The 8-bit scales and minimums of a super-block format, by group.
    small: Vec<[u8; 2]>,
    /// The f16 factors of a super-block format, by chunk.
    supers: Vec<[u8; 4]>,
    block: Codes,
    floats: Vec<f32>,
}

impl Row {
    fn new(kind: &Kind, k: usize, chunks: usize) -> Row {
        let columns = chunks * kind.chunk();
        debug_assert!(columns >= k);
        let groups = columns / kind.group;
        Row {
            codes: vec![0; columns],
            scales: vec![0.0; groups],
            offsets: vec![0.0; groups],
            small: vec![[0; 2]; groups],
            supers: vec![[0; 4]; chunks],
            block: Codes::new(),
            floats: Vec::new(),
        }
    }

    /// Writes float weights as row `r` of a tile and gives what takes their power of two back: the
    /// largest is between 2^14 and 2^15, so that `bf16` values down to 2^-31 of it keep all bits.
    fn store_floats(
        &mut self,
        kind: &Kind,
        dtype: DType,
        bytes: &[u8],
        r: usize,
        out: &mut [u8],
    ) -> f32 {
        self.floats.clear();
        match dtype {
            DType::F32 => self.floats.extend(
                bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])),
            ),
            DType::BF16 => self
                .floats
                .extend(bytes.chunks_exact(2).map(|b| bf16::from_le_bytes([b[0], b[1]]).to_f32())),
            _ => self
                .floats
                .extend(bytes.chunks_exact(2).map(|b| f16::from_le_bytes([b[0], b[1]]).to_f32())),
        }
        let finite = self.floats.iter().filter(|v| v.is_finite());
        let largest = finite.fold(0f32, |top, v| top.max(v.abs()));
        let exponent = match largest > 0.0 {
            true => (14 - largest.log2().floor() as i32).clamp(-100, 100),
            false => 0,
        };
        let up = 2f32.powi(exponent);
        for (column, value) in self.floats.iter().enumerate() {
            let scaled = value * up;
            let mut rest = scaled;
            for plane in 0..kind.planes {
                let unit = column / UNIT * kind.planes + plane;
                let (step, t, i) = (column % UNIT / 16, column % 16 / 4, column % 4);
                let lane = r % 8 * 4 + t;
                let word = i / 2 * 2 + r / 8;
                let at = ((unit * 4 + step) * 32 + lane) * 16 + word * 4 + i % 2 * 2;
                let half = f16::from_f32(rest);
                out[at..at + 2].copy_from_slice(&half.to_le_bytes());
                rest -= half.to_f32();
            }
        }
        2f32.powi(-exponent)
    }

    fn decode(&mut self, kind: &Kind, dtype: DType, bytes: &[u8]) {
        let layout = dtype.layout();
        let groups = layout.block / kind.group;
        for (i, block) in bytes.chunks_exact(layout.bytes).enumerate() {
            // The row is whole blocks of the dtype, which is quantised: `codes` cannot fail.
            if codes(dtype, block, &mut self.block).is_err() {
                continue;
            }
            let columns = i * layout.block..(i + 1) * layout.block;
            self.codes[columns].copy_from_slice(&self.block.codes[..layout.block]);
            let range = i * groups..(i + 1) * groups;
            self.scales[range.clone()].copy_from_slice(&self.block.scales[..groups]);
            self.offsets[range.clone()].copy_from_slice(&self.block.offsets[..groups]);
            match kind.scales {
                Scales::SuperMin => {
                    self.supers[i].copy_from_slice(&block[..4]);
                    let small = six_bits(&block[4..16]);
                    self.small[range].copy_from_slice(&small);
                }
                Scales::Super => {
                    self.supers[i][..2].copy_from_slice(&block[208..210]);
                    for (to, &from) in self.small[range].iter_mut().zip(&block[192..208]) {
                        to[0] = from;
                    }
                }
                _ => {}
            }
        }
    }

    /// Writes the row as row `r` of a tile.
    fn store(&self, kind: &Kind, r: usize, out: &mut Planes<'_>) {
        let (g, upper) = (r % 8, r / 8); // the lane's quad, and whether it is row g + 8
        for (number, group) in self.codes.chunks_exact(32).enumerate() {
            let (unit, j) = (number / 2, number % 2);
            for t in 0..4 {
                let lane = g * 4 + t;
                for half in 0..2 {
                    let four = &group[16 * half + 4 * t..][..4];
                    self.store_codes(kind, unit, j, lane, upper, half, four, out);
                }
            }
        }
        let per_row = 2 * 32 / kind.group; // groups of a row in a unit
        let f16s = |v: f32| f16::from_f32(v).to_le_bytes();
        for (unit, groups) in self.scales.chunks_exact(per_row).enumerate() {
            let offsets = &self.offsets[unit * per_row..][..per_row];
            let small = &self.small[unit * per_row..][..per_row];
            match kind.scales {
                Scales::F16 => {
                    let to = &mut out.scales[(unit * 8 + g) * 8 + upper * 4..][..4];
                    to[..2].copy_from_slice(&f16s(groups[0]));
                    to[2..].copy_from_slice(&f16s(groups[1]));
                }
                Scales::F16Min => {
                    let to = &mut out.scales[(unit * 8 + g) * 16 + upper * 8..][..8];
                    let values = [groups[0], groups[1], offsets[0], offsets[1]];
                    for (to, v) in to.chunks_exact_mut(2).zip(values) {
                        to.copy_from_slice(&f16s(v));
                    }
                }
                Scales::SuperMin | Scales::Super => {
                    let (chunk, within) = (unit / 4, unit % 4);
                    let at = (((chunk * 8 + g) * 4 + within) * 2 + upper) * 4;
                    let to = &mut out.scales[at..][..4];
                    if kind.scales == Scales::Super {
                        to.iter_mut().zip(small).for_each(|(to, s)| *to = s[0]);
                    } else {
                        to.copy_from_slice(&[small[0][0], small[1][0], small[0][1], small[1][1]]);
                    }
                }
                Scales::F32 | Scales::F32Min => {
                    let both = kind.scales == Scales::F32Min;
                    let stride = per_row * if both { 2 } else { 1 };
                    let to = &mut out.scales[(unit * TILE + r) * stride * 4..][..stride * 4];
                    let values = groups.iter().chain(offsets);
                    for (to, v) in to.chunks_exact_mut(4).zip(values) {
                        to.copy_from_slice(&v.to_le_bytes());
                    }
                }
                Scales::Row => {}
            }
        }
        for (chunk, factors) in self.supers.iter().enumerate() {
            match kind.scales {
                Scales::SuperMin => {
                    let at = ((chunk * 8 + g) * 2 + upper) * 4;
                    out.supers[at..][..4].copy_from_slice(factors);
                }
                Scales::Super => {
                    let at = ((chunk * 8 + g) * 2 + upper) * 2;
                    out.supers[at..][..2].copy_from_slice(&factors[..2]);
                }
                _ => {}
            }
        }
    }

    /// Four codes: columns 16 * half + 4t of group `j` of a unit, of row g or g + 8.
    #[allow(clippy::too_many_arguments, reason = "the place of a register in a tile")]
    fn store_codes(
        &self,
        kind: &Kind,
        unit: usize,
        j: usize,
        lane: usize,
        upper: usize,
        half: usize,
        four: &[i8],
        out: &mut Planes<'_>,
    ) {
        let register = half * 2 + upper; // of the four of `mma.m16n8k32`
        if kind.bits == 8 {
            let at = ((unit * 2 + j) * 32 + lane) * 16 + register * 4;
            for (to, &code) in out.low[at..][..4].iter_mut().zip(four) {
                *to = code as u8;
            }
            return;
        }
        let at = (unit * 32 + lane) * 16 + (j * 2 + upper) * 4;
        for (to, &code) in out.low[at..][..4].iter_mut().zip(four) {
            *to |= (code as u8 & 15) << (4 * half);
        }
        match kind.bits {
            5 => {
                let at = (unit * 32 + lane) * 4;
                for (to, &code) in out.high[at..][..4].iter_mut().zip(four) {
                    *to |= (code as u8 >> 4 & 1) << (7 - register - 4 * j);
                }
            }
            6 => {
                let at = (unit * 32 + lane) * 8 + j * 4;
                for (to, &code) in out.high[at..][..4].iter_mut().zip(four) {
                    *to |= (code as u8 >> 4 & 3) << (6 - 2 * register);
                }
            }
            _ => {}
        }
    }
}

/// The eight 6-bit scales and minimums of Q4_K and Q5_K.
fn six_bits(packed: &[u8]) -> [[u8; 2]; 8] {
    let mut out = [[0; 2]; 8];
    for i in 0..4 {
        let (s, m, low) = (packed[i], packed[4 + i], packed[8 + i]);
        out[i] = [s & 63, m & 63];
        out[4 + i] = [low & 15 | s >> 6 << 4, low >> 4 | m >> 6 << 4];
    }
    out
}
#[cfg(test)]
mod tests;
