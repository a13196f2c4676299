//! What a tower for pictures is, and how pictures become the patches that it takes.

use cyb_ir::Graph;

use crate::encoder::Scores;

/// A tower for pictures: patches in, hidden states and vectors out.
///
/// Its graph has inputs `patches F32[T, patch]`, `positions` or `place_rows F32[T, hidden]`,
/// `bounds`, `shown` and `pooled`, with a sequence for each picture, and outputs
/// `last_hidden_state`, `pooler_output`, `embeds` and `logits [R, labels]`, of those that the model
/// has.
#[derive(Debug)]
pub struct PictureTower {
    pub graph: Graph,
    pub info: PictureInfo,
}

/// How a tower for pictures is driven.
#[derive(Clone, Debug, PartialEq)]
pub struct PictureInfo {
    pub channels: usize,
    /// Pixels along each side of a patch.
    pub patch_size: usize,
    /// Whether a token that stands for the picture, a patch of zeros, comes before the others.
    pub own_token: bool,
    pub cut: Cut,
    pub places: Places,
    pub hidden_size: usize,
    /// Width of the vector of a picture; 0 without one.
    pub embeds: usize,
    /// Names of the labels of pictures, in the order of the logits; none without such a head.
    pub labels: Vec<String>,
    /// How logits become scores.
    pub scores: Scores,
}

/// The order of the numbers of a patch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// `[channel, row, column]`
    ByChannel,
    /// `[row, column, channel]`
    ByPixel,
}

/// Where patches are in their picture.
#[derive(Clone, Debug, PartialEq)]
pub enum Places {
    /// `side * side` patches, always; the graph knows their places.
    Fixed { side: usize },
    /// Any grid; the vectors `[side * side, hidden]` of places are scaled to it.
    Scaled { side: usize, table: Vec<f32> },
}

/// How vectors of texts and pictures are compared: `scale * text · picture + bias` of vectors of
/// length 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Contrast {
    pub scale: f32,
    pub bias: f32,
    /// Whether each text fits or not, or one of several does.
    pub sigmoid: bool,
}

impl PictureInfo {
    /// Numbers of a patch.
    pub fn patch(&self) -> usize {
        self.channels * self.patch_size * self.patch_size
    }

    /// Patches along each side of every picture, where they are always the same.
    pub fn side(&self) -> Option<usize> {
        match self.places {
            Places::Fixed { side } => Some(side),
            Places::Scaled { .. } => None,
        }
    }

    /// Appends the patches of a picture, whose numbers are `[channel, row, column]`. What is left
    /// over at the right and below is not in any.
    pub fn patches(&self, pixels: &[f32], [height, width]: [usize; 2], out: &mut Vec<f32>) {
        let p = self.patch_size;
        let at = |c: usize, y: usize, x: usize| pixels[(c * height + y) * width + x];
        if self.own_token {
            out.resize(out.len() + self.patch(), 0.0);
        }
        for (top, left) in (0..height / p).flat_map(|y| (0..width / p).map(move |x| (y * p, x * p)))
        {
            let all = || (0..p).flat_map(|y| (0..p).map(move |x| (top + y, left + x)));
            match self.cut {
                Cut::ByChannel => {
                    for c in 0..self.channels {
                        out.extend(all().map(|(y, x)| at(c, y, x)));
                    }
                }
                Cut::ByPixel => {
                    out.extend(
                        all().flat_map(|(y, x)| (0..self.channels).map(move |c| at(c, y, x))),
                    );
                }
            }
        }
    }

    /// Appends the vectors of places of a grid of `rows` by `columns` patches, and of the first
    /// again up to `length`: scaled from the table with the weights of a triangle, which is as wide
    /// as a step where the grid is coarser. Nothing when the graph knows them.
    ///
    /// Reference: `resize_positional_embeddings` of `Siglip2VisionEmbeddings`.
    pub fn place_rows(&self, [rows, columns]: [usize; 2], length: usize, out: &mut Vec<f32>) {
        let Places::Scaled { side, table } = &self.places else { return };
        let weights = |n: usize| -> Vec<Vec<f32>> {
            let scale = *side as f32 / n as f32;
            let support = scale.max(1.0);
            let one = |i: usize| {
                let center = (i as f32 + 0.5) * scale - 0.5;
                let weight = |at: usize| (1.0 - (at as f32 - center).abs() / support).max(0.0);
                let all: Vec<f32> = (0..*side).map(weight).collect();
                let sum: f32 = all.iter().sum();
                all.into_iter().map(|w| w / sum).collect()
            };
            (0..n).map(one).collect()
        };
        let (down, across) = (weights(rows), weights(columns));
        for i in 0..length {
            let place = if i < rows * columns { i } else { 0 };
            let (y, x) = (&down[place / columns], &across[place % columns]);
            let start = out.len();
            out.resize(start + self.hidden_size, 0.0);
            for (row, &wy) in table.chunks_exact(self.hidden_size * side).zip(y) {
                for (cell, &wx) in row.chunks_exact(self.hidden_size).zip(x) {
                    let weight = wy * wx;
                    if weight != 0.0 {
                        let sums = out[start..].iter_mut().zip(cell);
                        sums.for_each(|(sum, v)| *sum += weight * v);
                    }
                }
            }
        }
    }
}
