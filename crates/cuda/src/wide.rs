//! Products of many tokens on Hopper: `wide.cu`, and `dense.cu` for prompts.

use crate::driver::{CudaError, Function, Launch, Memory, Parameter};
use crate::op::{Device, per_element};
use crate::pack::{Kind, TILE};

/// Tokens up to which a product's columns are split among blocks, so that all of the GPU is busy.
pub(crate) const SPLIT_UP_TO: usize = 128;
/// Tokens from which weights are decoded once, by a kernel of its own.
pub(crate) const DENSE_FROM: usize = 384;
/// Tokens of a block of `wide.cu`, by number of its kernel.
const WIDTHS: [usize; 4] = [32, 64, 128, 256];
/// Tiles of weights of a block there.
const WIDE_TILES: usize = 8;
/// Warps of a block there.
const WARPS: usize = 8;
/// Tiles of weights that a cluster of `dense.cu` does at a time.
const DENSE_TILES: usize = 16;
/// Tokens that it does at a time.
pub(crate) const DENSE_TOKENS: usize = 256;
/// Bytes of shared memory of a block there: stages of tokens and weights, sums, alignment.
const DENSE_SHARED: usize = 4 * (48 << 10) + (32 << 10) + 1024;
/// Bytes of decoded weights at a time, at most.
pub(crate) const DECODED: usize = 256 << 20;
/// Columns of a block of `blocks.cuh`.
const COLUMNS: usize = 64;

/// Bytes of shared memory of a block of `wide.cu`: stages of tokens, records, alignment; `Depth`
/// there.
fn wide_shared(kind: &Kind, width: usize) -> usize {
    let units = match width {
        32 => kind.units(),
        64 => 2,
        128 => kind.units() / 2,
        _ => 1,
    };
    let stages = if width >= 128 { 4 } else { 3 };
    stages * units * width * 128 + WARPS * 3 * kind.record() + 1024
}

/// The kernels for many tokens of a matrix.
#[derive(Debug)]
pub(crate) struct Wide {
    products: [(Function, usize); 4],
    add_splits: Function,
    dense: Option<Dense>,
    tiles: usize,
    chunks: usize,
    multiprocessors: usize,
}

/// Weights decoded in one kernel and multiplied in another.
#[derive(Debug)]
struct Dense {
    widen: Function,
    product: Function,
    /// Blocks of 64 columns of a row.
    units: usize,
}

/// What a matrix is multiplied with, and where to.
pub(crate) struct Operands<'a> {
    pub(crate) matrix: Parameter,
    pub(crate) row_scales: Option<&'a Memory>,
    pub(crate) rows: usize,
    /// Columns of a prepared row.
    pub(crate) padded: usize,
    /// Addresses of the prepared rows, and of what takes their powers of two back.
    pub(crate) codes: u64,
    pub(crate) scales: u64,
    /// Addresses of scratch: sums of splits, decoded weights.
    pub(crate) partials: u64,
    pub(crate) decoded: u64,
    pub(crate) targets: Parameter,
}

impl Wide {
    pub(crate) fn new(
        device: &Device,
        kind: &Kind,
        tiles: usize,
        chunks: usize,
    ) -> Result<Wide, CudaError> {
        let mut products = [(device.function(kind.wide, "wide_32")?, 0); 4];
        for (to, width) in products.iter_mut().zip(WIDTHS) {
            *to = (device.function(kind.wide, &format!("wide_{width}"))?, wide_shared(kind, width));
            to.0.allow_shared(to.1)?;
        }
        let dense = match kind.planes() {
            1 => {
                let product = device.function("dense", "dense")?;
                product.allow_shared(DENSE_SHARED)?;
                let widen = device.function(kind.wide, "widen")?;
                Some(Dense { widen, product, units: chunks * kind.units() })
            }
            _ => None,
        };
        Ok(Wide {
            products,
            add_splits: device.function(kind.wide, "add_splits")?,
            dense,
            tiles,
            chunks,
            multiprocessors: device.gpu.multiprocessors,
        })
    }

    /// Whether so many rows may be multiplied with decoded weights.
    pub(crate) fn is_dense(&self, rows: usize) -> bool {
        self.dense.is_some() && rows >= DENSE_FROM
    }

    /// Splits of the columns, and chunks of each.
    fn splits(&self, rows: usize) -> (usize, usize) {
        let blocks = self.tiles.div_ceil(WIDE_TILES);
        let wanted =
            if rows > SPLIT_UP_TO { 1 } else { (self.multiprocessors / blocks).clamp(1, 8) };
        let each = self.chunks.div_ceil(wanted);
        (self.chunks.div_ceil(each), each)
    }

    /// Bytes of scratch for the sums of splits.
    pub(crate) fn partials(&self, rows: usize) -> usize {
        if rows > SPLIT_UP_TO { 0 } else { self.splits(rows).0 * self.tiles * rows * TILE * 4 }
    }

    /// Bytes of scratch for decoded weights.
    pub(crate) fn decoded(&self, rows: usize) -> usize {
        let dense = self.dense.as_ref().filter(|_| self.is_dense(rows));
        dense
            .map_or(0, |d| d.panel().min(self.tiles.next_multiple_of(DENSE_TILES)) * d.tile_bytes())
    }

    /// The launches for prepared rows, which lie in blocks for `dense`.
    pub(crate) fn launches(&self, x: &Operands<'_>, dense: bool, out: &mut Vec<Launch>) {
        match self.dense.as_ref().filter(|_| dense) {
            Some(dense) => self.launch_dense(dense, x, out),
            None => self.launch_wide(x, out),
        }
    }

    fn launch_wide(&self, x: &Operands<'_>, out: &mut Vec<Launch>) {
        let (splits, each) = self.splits(x.rows);
        let number = WIDTHS.iter().position(|&w| w >= x.rows).unwrap_or(3);
        let (function, shared) = self.products[number];
        let partials = if splits > 1 { x.partials } else { 0 };
        let wide = Parameter::new()
            .u64(x.codes)
            .u64(x.scales)
            .u64(partials)
            .i32(x.rows)
            .i32(x.padded)
            .i32(each);
        let columns = x.rows.div_ceil(WIDTHS[number]) as u32;
        out.push(Launch {
            function,
            grid: (columns, self.tiles.div_ceil(WIDE_TILES) as u32, splits as u32),
            block: 256,
            cluster: 1,
            shared: shared as u32,
            parameters: vec![x.matrix.clone(), wide, x.targets.clone()],
        });
        if splits > 1 {
            out.push(per_element(
                self.add_splits,
                x.rows * self.tiles * TILE,
                vec![
                    Parameter::address(partials),
                    Parameter::int(splits),
                    Parameter::int(x.rows),
                    Parameter::int(self.tiles),
                    x.targets.clone(),
                ],
            ));
        }
    }

    fn launch_dense(&self, dense: &Dense, x: &Operands<'_>, out: &mut Vec<Launch>) {
        let pairs = x.rows.div_ceil(DENSE_TOKENS);
        for first in (0..self.tiles).step_by(dense.panel()) {
            let last = self.tiles.min(first + dense.panel());
            let range = [first, last].map(Parameter::int);
            let mut parameters = vec![x.matrix.clone(), Parameter::address(x.decoded)];
            parameters.extend(range);
            out.push(Launch {
                function: dense.widen,
                grid: (((last - first) * self.chunks).div_ceil(WARPS) as u32, 1, 1),
                block: 256,
                cluster: 1,
                shared: 0,
                parameters,
            });
            let operands = Parameter::new()
                .u64(x.decoded)
                .u64(x.codes)
                .u64(x.scales)
                .u64(x.row_scales.map_or(0, |m| m.at(0)))
                .i32(x.rows)
                .i32(dense.units)
                .i32(x.padded / COLUMNS)
                .i32(first)
                .i32(last);
            let works = pairs * (last - first).div_ceil(DENSE_TILES);
            out.push(Launch {
                function: dense.product,
                // Clusters of two that walk over the work.
                grid: (2 * works.min(self.multiprocessors / 2) as u32, 1, 1),
                block: 384,
                cluster: 1,
                shared: DENSE_SHARED as u32,
                parameters: vec![operands, x.targets.clone()],
            });
        }
    }
}

impl Dense {
    fn tile_bytes(&self) -> usize {
        TILE * self.units * COLUMNS * 2
    }

    /// Tiles that are decoded at a time.
    fn panel(&self) -> usize {
        (DECODED / self.tile_bytes() / DENSE_TILES).max(1) * DENSE_TILES
    }
}
