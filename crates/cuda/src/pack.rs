//! Weights in the layout of `kernels/linear.cu`: tiles of 16 rows, in units of 64 columns, ordered
//! as the lanes of a warp read them.
//!
//! Every quantised format becomes one of a few storage kinds: codes of 4, 5, 6 or 8 bits in groups
//! of 16 or 32, with scales stored as exactly as the format has them. Formats without a kind of
//! their own are stored as 8-bit codes with `f32` scales.

use cyb_tensor::quant::{Codes, codes, group_size, has_offsets};
use cyb_tensor::{Class, DType};
use half::f16;

/// Rows of a tile.
pub(crate) const TILE: usize = 16;
/// Columns of a unit.
const UNIT: usize = 64;

/// How scales are stored; the names are those of `linear.cu`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scales {
    F16,
    F16Min,
    SuperMin,
    Super,
    F32,
    F32Min,
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
}

macro_rules! kind {
    ($name:literal, $bits:literal, $group:literal, $scales:expr) => {
        Kind {
            module: concat!("linear_", $name),
            wide: concat!("wide_", $name),
            bits: $bits,
            group: $group,
            scales: $scales,
        }
    };
}

impl Kind {
    /// The kind for a quantised dtype.
    pub(crate) fn of(dtype: DType) -> Option<Kind> {
        if dtype.class() != Class::Quantized {
            return None;
        }
        Some(match dtype {
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

    /// Units of a chunk.
    fn units(&self) -> usize {
        match self.scales {
            Scales::SuperMin | Scales::Super => 4,
            _ => 2,
        }
    }

    /// Columns of a chunk: what a warp does at a time.
    pub(crate) fn chunk(&self) -> usize {
        self.units() * UNIT
    }

    /// Bytes a chunk of a tile takes in each plane.
    fn planes(&self) -> [usize; 4] {
        let units = self.units();
        let low = units * 512 * if self.bits == 8 { 2 } else { 1 };
        let high = units * [0, 128, 256][if self.bits < 8 { self.bits - 4 } else { 0 }];
        let per_row = 2 * 32 / self.group;
        let (scales, supers) = match self.scales {
            Scales::F16 => (units * 64, 0),
            Scales::F16Min => (units * 128, 0),
            Scales::SuperMin => (256, 64),
            Scales::Super => (256, 32),
            Scales::F32 => (units * TILE * per_row * 4, 0),
            Scales::F32Min => (units * TILE * per_row * 8, 0),
        };
        [low, high, scales, supers]
    }
}

/// Matrices of one kind and width behind each other, packed.
#[derive(Debug)]
pub(crate) struct Packed {
    pub(crate) tiles: usize,
    pub(crate) chunks: usize,
    /// The planes one after the other, each at a multiple of 256.
    pub(crate) bytes: Vec<u8>,
    /// Where each plane begins.
    pub(crate) offsets: [usize; 4],
}

/// A matrix to pack: its rows, and their bytes in the file's layout.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rows<'a> {
    pub(crate) dtype: DType,
    pub(crate) n: usize,
    pub(crate) bytes: &'a [u8],
}

/// Packs matrices of one kind; each begins a tile. Tiles are spread over `threads`.
pub(crate) fn pack(kind: Kind, k: usize, parts: &[Rows<'_>], threads: usize) -> Packed {
    let chunks = k.div_ceil(kind.chunk());
    let tiles: usize = parts.iter().map(|p| p.n.div_ceil(TILE)).sum();
    let sizes = kind.planes().map(|bytes| bytes * chunks);
    let mut offsets = [0; 4];
    let mut total = 0;
    for (offset, size) in offsets.iter_mut().zip(sizes) {
        *offset = total;
        total += (size * tiles).next_multiple_of(256);
    }
    let mut bytes = vec![0u8; total];
    let share = tiles.div_ceil(threads.max(1)).max(1);
    let mut planes: Vec<&mut [u8]> = Vec::new();
    let mut rest = bytes.as_mut_slice();
    for size in sizes {
        let (plane, after) = rest.split_at_mut((size * tiles).next_multiple_of(256));
        planes.push(&mut plane[..size * tiles]);
        rest = after;
    }
    std::thread::scope(|scope| {
        for first in (0..tiles).step_by(share) {
            let here = share.min(tiles - first);
            let mut mine = [&mut [][..], &mut [], &mut [], &mut []];
            for ((plane, mine), size) in planes.iter_mut().zip(&mut mine).zip(sizes) {
                let all = std::mem::take(plane);
                let (head, tail) = all.split_at_mut(size * here);
                (*mine, *plane) = (head, tail);
            }
            scope.spawn(move || {
                let mut row = Row::new(&kind, k, chunks);
                for tile in 0..here {
                    let part = |i: usize| tile * sizes[i]..(tile + 1) * sizes[i];
                    let [low, high, scales, supers] = &mut mine;
                    let mut out = Planes {
                        low: &mut low[part(0)],
                        high: &mut high[part(1)],
                        scales: &mut scales[part(2)],
                        supers: &mut supers[part(3)],
                    };
                    for r in 0..TILE {
                        if let Some((dtype, bytes)) = find_row(parts, k, first + tile, r) {
                            row.decode(&kind, dtype, bytes);
                            row.store(&kind, r, &mut out);
                        }
                    }
                }
            });
        }
    });
    Packed { tiles, chunks, bytes, offsets }
}

/// Row `r` of tile `tile`, unless it is past the end of its matrix.
fn find_row<'a>(
    parts: &[Rows<'a>],
    k: usize,
    mut tile: usize,
    r: usize,
) -> Option<(DType, &'a [u8])> {
    for part in parts {
        let tiles = part.n.div_ceil(TILE);
        if tile < tiles {
            let row = tile * TILE + r;
            let stride = part.dtype.bytes_for(k)?;
            return (row < part.n).then(|| (part.dtype, &part.bytes[row * stride..][..stride]));
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
        }
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
                    let at = ((chunk * 8 + g) * 2 + upper) * 16 + within * 4;
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
mod tests {
    use super::*;

    /// Reads element (row, column) back from the planes, by the description in `linear.cu`.
    fn element(kind: Kind, p: &Packed, row: usize, column: usize) -> f32 {
        let planes = kind.planes();
        let (tile, r) = (row / TILE, row % TILE);
        let (g, upper) = (r % 8, r / 8);
        let (chunk, within) = (column / kind.chunk(), column % kind.chunk());
        let (unit, j) = (within / 64, within % 64 / 32);
        let e = within % 32;
        let (half, t, i) = (e / 16, e % 16 / 4, e % 4);
        let lane = 4 * g + t;
        let register = 2 * half + upper;
        let base = |plane: usize| p.offsets[plane] + (tile * p.chunks + chunk) * planes[plane];
        let low = |at: usize| p.bytes[base(0) + at];
        let code = if kind.bits == 8 {
            low(((unit * 2 + j) * 32 + lane) * 16 + register * 4 + i)
        } else {
            low((unit * 32 + lane) * 16 + (j * 2 + upper) * 4 + i) >> (4 * half) & 15
        };
        let high = |at: usize| p.bytes[base(1) + at];
        let code = match kind.bits {
            5 => code | (high((unit * 32 + lane) * 4 + i) >> (7 - register - 4 * j) & 1) << 4,
            6 => code | (high((unit * 32 + lane) * 8 + j * 4 + i) >> (6 - 2 * register) & 3) << 4,
            _ => code,
        };
        let signed = !matches!(kind.scales, Scales::F16Min | Scales::SuperMin) || kind.bits == 8;
        let shift = 8 - kind.bits;
        let code = if signed { f32::from((code << shift) as i8 >> shift) } else { f32::from(code) };
        let s = |at: usize| p.bytes[base(2) + at];
        let half_at = |plane: usize, at: usize| {
            let at = base(plane) + at;
            f16::from_le_bytes([p.bytes[at], p.bytes[at + 1]]).to_f32()
        };
        let float =
            |at: usize| f32::from_le_bytes(p.bytes[base(2) + at..][..4].try_into().unwrap());
        let per_row = 64 / kind.group;
        let group = (within % 64) / kind.group;
        match kind.scales {
            Scales::F16 => code * half_at(2, (unit * 8 + g) * 8 + upper * 4 + j * 2),
            Scales::F16Min => {
                let at = (unit * 8 + g) * 16 + upper * 8;
                code * half_at(2, at + j * 2) + half_at(2, at + 4 + j * 2)
            }
            Scales::SuperMin => {
                let at = (g * 2 + upper) * 16 + unit * 4;
                let super_at = (g * 2 + upper) * 4;
                code * (half_at(3, super_at) * f32::from(s(at + j)))
                    - half_at(3, super_at + 2) * f32::from(s(at + 2 + j))
            }
            Scales::Super => {
                let at = (g * 2 + upper) * 16 + unit * 4 + group;
                code * (half_at(3, (g * 2 + upper) * 2) * f32::from(s(at) as i8))
            }
            Scales::F32 => code * float(((unit * TILE + r) * per_row + group) * 4),
            Scales::F32Min => {
                let at = (unit * TILE + r) * per_row * 2 + group;
                code * float(at * 4) + float((at + per_row) * 4)
            }
        }
    }

    #[test]
    fn packed_weights_are_the_weights() {
        let mut seed = 1u64;
        let mut random = move || {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 56) as u8
        };
        for &dtype in DType::ALL.iter().filter(|d| d.is_quantized()) {
            let kind = Kind::of(dtype).unwrap();
            let layout = dtype.layout();
            let k = 3 * layout.block;
            let stride = dtype.bytes_for(k).unwrap();
            let mut rows = |n: usize| -> Vec<u8> {
                let mut bytes = Vec::new();
                let mut decoded = vec![0f32; layout.block];
                while bytes.len() < n * stride {
                    let block: Vec<u8> = (0..layout.bytes).map(|_| random()).collect();
                    let fits = cyb_tensor::quant::decode(dtype, &block, &mut decoded).is_ok();
                    if fits && decoded.iter().all(|v| v.is_finite() && v.abs() < 1e4) {
                        bytes.extend(block);
                    }
                }
                bytes
            };
            let (a, b) = (rows(21), rows(5));
            let parts = [Rows { dtype, n: 21, bytes: &a }, Rows { dtype, n: 5, bytes: &b }];
            let packed = pack(kind, k, &parts, 3);
            assert_eq!(packed.tiles, 3);
            for (first, n, bytes) in [(0, 21, &a), (32, 5, &b)] {
                let mut want = vec![0f32; n * k];
                cyb_tensor::quant::decode(dtype, bytes, &mut want).unwrap();
                for (i, want) in want.iter().enumerate() {
                    let got = element(kind, &packed, first + i / k, i % k);
                    assert_eq!(*want, got, "{dtype}: row {}, column {}", i / k, i % k);
                }
            }
            // What pads the width and the last tiles is nothing.
            if k < packed.chunks * kind.chunk() {
                assert_eq!(element(kind, &packed, 0, packed.chunks * kind.chunk() - 1), 0.0);
            }
            assert_eq!(element(kind, &packed, 30, 0), 0.0, "{dtype}");
        }
    }
}
