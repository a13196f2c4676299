//! Weights in another layout, made once for all imports of a model.

use cyb_tensor::{AlignedBytes, Bytes, Tensor, TensorError};

/// A matrix with rows and columns exchanged.
pub(crate) fn transposed(t: &Tensor) -> Result<Tensor, TensorError> {
    let &[rows, columns] = t.shape() else { return Ok(t.clone()) };
    let size = t.dtype().layout().bytes;
    let from = t.bytes().as_slice();
    let mut to = AlignedBytes::zeroed(from.len());
    let out = to.as_mut_slice();
    // Tiles that stay in the first-level cache on both sides.
    const TILE: usize = 32;
    for row in (0..rows).step_by(TILE) {
        for column in (0..columns).step_by(TILE) {
            for r in row..rows.min(row + TILE) {
                for c in column..columns.min(column + TILE) {
                    let source = (r * columns + c) * size;
                    let target = (c * rows + r) * size;
                    out[target..target + size].copy_from_slice(&from[source..source + size]);
                }
            }
        }
    }
    Tensor::new(t.dtype(), vec![columns, rows], Bytes::owned(to))
}
