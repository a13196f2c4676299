//! Matrices: plain floats read from the file's own bytes, or codes of a product quantizer.
//!
//! A quantized row is cut into parts of a few floats; each part is one of 256 centroids. The norm of
//! the row may be quantized on its own.

use crate::Problem;
use crate::reader::Reader;

/// Centroids of a part.
const CENTROIDS: usize = 256;

#[derive(Debug)]
pub(crate) enum Matrix {
    /// Where the floats are in the file.
    Dense {
        start: usize,
        rows: usize,
        columns: usize,
    },
    Quantized(Quantized),
}

#[derive(Debug)]
pub(crate) struct Quantized {
    rows: usize,
    codes: Vec<u8>,
    parts: Quantizer,
    norms: Option<(Vec<u8>, Quantizer)>,
}

#[derive(Debug)]
struct Quantizer {
    /// Floats of a row.
    dim: usize,
    n_parts: usize,
    /// Floats of a part, and of the last one.
    part: usize,
    centroids: Vec<f32>,
}

impl Matrix {
    pub(crate) fn dense(r: &mut Reader<'_>) -> Result<Matrix, Problem> {
        let (m, n) = (r.i64()?, r.i64()?);
        let most = r.rest() / size_of::<f32>();
        let rows = r.size("the number of rows", m, most)?;
        let columns = r.size("the number of columns", n, most)?;
        let start = r.position();
        let too_large = Problem::Value {
            what: "the number of rows",
            value: m,
            want: "which the file has no room for",
        };
        let bytes = rows.checked_mul(columns).and_then(|n| n.checked_mul(size_of::<f32>()));
        r.take(bytes.ok_or(too_large)?)?;
        Ok(Matrix::Dense { start, rows, columns })
    }

    pub(crate) fn quantized(r: &mut Reader<'_>) -> Result<Matrix, Problem> {
        let with_norms = r.flag("the mark of quantized norms")?;
        let (m, n, size) = (r.i64()?, r.i64()?, r.i32()?);
        let rows = r.size("the number of rows", m, r.rest())?;
        let columns = r.size("the number of columns", n, r.rest())?;
        let size = r.size("the number of codes", size.into(), r.rest())?;
        let codes = r.take(size)?.to_vec();
        let parts = Quantizer::read(r)?;
        if parts.dim != columns || parts.n_parts.checked_mul(rows) != Some(size) {
            let want = "which does not fit its quantizer";
            return Err(Problem::Value { what: "the number of codes", value: size as i64, want });
        }
        let norms = match with_norms {
            false => None,
            true => {
                let codes = r.take(rows)?.to_vec();
                let norms = Quantizer::read(r)?;
                if norms.dim != 1 || norms.n_parts != 1 {
                    let want = "not 1";
                    let value = norms.dim as i64;
                    return Err(Problem::Value { what: "the width of norms", value, want });
                }
                Some((codes, norms))
            }
        };
        Ok(Matrix::Quantized(Quantized { rows, codes, parts, norms }))
    }

    pub(crate) fn rows(&self) -> usize {
        match self {
            Matrix::Dense { rows, .. } => *rows,
            Matrix::Quantized(q) => q.rows,
        }
    }

    pub(crate) fn columns(&self) -> usize {
        match self {
            Matrix::Dense { columns, .. } => *columns,
            Matrix::Quantized(q) => q.parts.dim,
        }
    }

    /// Adds a row to `out`. `row` must be one.
    pub(crate) fn add_row(&self, file: &[u8], row: usize, out: &mut [f32]) {
        match self {
            Matrix::Dense { start, columns, .. } => {
                for (o, v) in out.iter_mut().zip(floats(file, *start, *columns, row)) {
                    *o += v;
                }
            }
            Matrix::Quantized(q) => {
                let norm = q.norm(row);
                // Parts of two floats are what models come with.
                match q.parts.part {
                    2 if q.parts.dim.is_multiple_of(2) => {
                        let codes = &q.codes[row * q.parts.n_parts..][..q.parts.n_parts];
                        let parts = q.parts.centroids.chunks_exact(2 * CENTROIDS);
                        let out = out.as_chunks_mut::<2>().0;
                        for ((part, &code), [a, b]) in parts.zip(codes).zip(out) {
                            let centroid = &part[2 * usize::from(code)..][..2];
                            *a += norm * centroid[0];
                            *b += norm * centroid[1];
                        }
                    }
                    _ => q.each(row, |at, centroid| {
                        for (o, v) in out[at..].iter_mut().zip(centroid) {
                            *o += norm * v;
                        }
                    }),
                }
            }
        }
    }

    /// The product of a row with `x`. `row` must be one.
    pub(crate) fn dot_row(&self, file: &[u8], row: usize, x: &[f32]) -> f32 {
        match self {
            Matrix::Dense { start, columns, .. } => {
                x.iter().zip(floats(file, *start, *columns, row)).map(|(a, b)| a * b).sum()
            }
            Matrix::Quantized(q) => {
                let mut sum = 0.0;
                q.each(row, |at, centroid| {
                    sum += x[at..].iter().zip(centroid).map(|(a, b)| a * b).sum::<f32>();
                });
                sum * q.norm(row)
            }
        }
    }
}

impl Quantized {
    fn norm(&self, row: usize) -> f32 {
        match &self.norms {
            None => 1.0,
            Some((codes, norms)) => norms.centroids[usize::from(codes[row])],
        }
    }

    /// The centroids of a row with their first column.
    fn each(&self, row: usize, mut f: impl FnMut(usize, &[f32])) {
        let Quantizer { dim, n_parts, part, ref centroids } = self.parts;
        for (i, &code) in self.codes[row * n_parts..][..n_parts].iter().enumerate() {
            let at = i * part;
            let width = part.min(dim - at);
            let first = at * CENTROIDS + usize::from(code) * width;
            f(at, &centroids[first..][..width]);
        }
    }
}

impl Quantizer {
    fn read(r: &mut Reader<'_>) -> Result<Quantizer, Problem> {
        let header = [r.i32()?, r.i32()?, r.i32()?, r.i32()?];
        let most = r.rest() / size_of::<f32>() / CENTROIDS;
        let [dim, n_parts, part, last] = header.map(|v| usize::try_from(v).unwrap_or(usize::MAX));
        // The last part has what is left of the row.
        let fits = dim <= most
            && n_parts > 0
            && part > 0
            && (1..=part).contains(&last)
            && (n_parts - 1).checked_mul(part).and_then(|n| n.checked_add(last)) == Some(dim);
        if !fits {
            let (what, value) = ("the width of a quantizer", header[0].into());
            return Err(Problem::Value { what, value, want: "which its parts do not add up to" });
        }
        let bytes = r.take(dim * CENTROIDS * size_of::<f32>())?;
        let centroids = bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
        Ok(Quantizer { dim, n_parts, part, centroids })
    }
}

fn floats(file: &[u8], start: usize, columns: usize, row: usize) -> impl Iterator<Item = f32> + '_ {
    let bytes = &file[start + row * columns * size_of::<f32>()..][..columns * size_of::<f32>()];
    bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b))
}
