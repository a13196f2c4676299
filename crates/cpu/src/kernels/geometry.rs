//! Convolutions as products without a right operand: which element of the padded planes a tap reads,
//! and where a position's output goes.

use std::array::from_fn;

/// Spatial axes of a convolution; shorter shapes have leading axes of length 1.
pub(super) const MAX_AXES: usize = 3;

/// One element of a window.
#[derive(Clone, Debug)]
pub(super) struct Tap {
    /// Its row-major number in the weight.
    pub(super) kernel: usize,
    /// Which plane of a channel it reads, and how far from the output's position, on each axis.
    phase: [usize; MAX_AXES],
    shift: [usize; MAX_AXES],
}

/// The outputs of one phase of the output's stride.
#[derive(Clone, Debug)]
pub(super) struct Part {
    pub(super) taps: Vec<Tap>,
    /// Output of position p on an axis: `p * step + start`.
    start: [usize; MAX_AXES],
}

/// How one axis is laid out: plane number i holds the elements
/// `q * stride + phases[i] - lead`, q = 0, 1, ...
#[derive(Clone, Debug)]
struct Axis {
    stride: usize,
    phases: Vec<usize>,
    lead: usize,
    /// Positions a plane holds beyond those of the outputs.
    reach: usize,
    /// Distance of neighbouring outputs of a part.
    step: usize,
}

/// What does not depend on the run.
#[derive(Debug)]
pub(super) struct Layout {
    axes: [Axis; MAX_AXES],
    pub(super) parts: Vec<Part>,
    pub(super) groups: usize,
    /// Output channels of a group.
    pub(super) rows: usize,
    /// Input channels of a group.
    pub(super) channels: usize,
    /// Elements of a kernel.
    pub(super) kernel_len: usize,
    /// Distinct rows of a channel that a tile reads: what its footprint in the cache grows with.
    pub(super) read_rows: usize,
    /// Whether the input itself may serve as the planes.
    plain_1x1: bool,
}

/// What depends on the run.
#[derive(Debug)]
pub(super) struct Geometry {
    pub(super) images: usize,
    lens: [usize; MAX_AXES],
    outs: [usize; MAX_AXES],
    /// Positions of a plane on each axis.
    plane: [usize; MAX_AXES],
    /// Floats of a channel of the input, of its planes, and of a channel of the output.
    pub(super) in_len: usize,
    pub(super) channel_len: usize,
    pub(super) out_len: usize,
    pub(super) direct: bool,
}

impl Geometry {
    /// Positions of a row of a plane.
    pub(super) fn pitch(&self) -> usize {
        self.plane[2]
    }
}

/// A tap's place on one axis.
#[derive(Clone, Copy)]
struct AxisTap {
    kernel: usize,
    phase: usize,
    shift: usize,
}

/// For each phase of the output's stride on one axis: its first output, and the taps it takes.
type AxisParts = Vec<(usize, Vec<AxisTap>)>;

fn widened(v: &[usize], fill: usize) -> [usize; MAX_AXES] {
    let lead = MAX_AXES - v.len();
    from_fn(|i| if i < lead { fill } else { v[i - lead] })
}

impl Layout {
    /// `w` is [M, C/groups, K...].
    pub(super) fn plain(
        w: &[usize],
        strides: &[usize],
        pads: &[usize],
        dilations: &[usize],
        groups: usize,
    ) -> Layout {
        let kernel = widened(&w[2..], 1);
        let (strides, dilations) = (widened(strides, 1), widened(dilations, 1));
        let lead = widened(&pads[..w.len() - 2], 0);
        let per_axis: [(Axis, AxisParts); MAX_AXES] = from_fn(|a| {
            let mut phases: Vec<usize> =
                (0..kernel[a]).map(|k| k * dilations[a] % strides[a]).collect();
            phases.sort_unstable();
            phases.dedup();
            let tap = |k: usize| {
                let at = k * dilations[a];
                let phase = phases.iter().position(|&p| p == at % strides[a]).unwrap_or(0);
                AxisTap { kernel: k, phase, shift: at / strides[a] }
            };
            let taps: Vec<AxisTap> = (0..kernel[a]).map(tap).collect();
            let reach = taps.iter().map(|t| t.shift).max().unwrap_or(0);
            let axis = Axis { stride: strides[a], phases, lead: lead[a], reach, step: 1 };
            (axis, vec![(0, taps)])
        });
        let no_pads = pads.iter().all(|&p| p == 0);
        let plain_1x1 = no_pads && kernel == [1; MAX_AXES] && strides == [1; MAX_AXES];
        Layout::new(per_axis, kernel, w[0] / groups, w[1], groups, plain_1x1)
    }

    /// `w` is [C, M/groups, K...]. Output o takes kernel element k where `o + pad - k * dilation`
    /// is a multiple of the stride.
    pub(super) fn transposed(
        w: &[usize],
        strides: &[usize],
        pads: &[usize],
        dilations: &[usize],
        groups: usize,
    ) -> Layout {
        let kernel = widened(&w[2..], 1);
        let (strides, dilations) = (widened(strides, 1), widened(dilations, 1));
        let pads = widened(&pads[..w.len() - 2], 0);
        let per_axis: [(Axis, AxisParts); MAX_AXES] = from_fn(|a| {
            let stride = strides[a] as i64;
            let shifts = |start: usize| -> Vec<(usize, i64)> {
                (0..kernel[a])
                    .map(|k| (k, (start + pads[a]) as i64 - (k * dilations[a]) as i64))
                    .filter(|(_, at)| at % stride == 0)
                    .map(|(k, at)| (k, at / stride))
                    .collect()
            };
            let all: Vec<Vec<(usize, i64)>> = (0..strides[a]).map(shifts).collect();
            let low = all.iter().flatten().map(|t| t.1).min().unwrap_or(0).min(0);
            let high = all.iter().flatten().map(|t| t.1).max().unwrap_or(0).max(0);
            let lead = low.unsigned_abs() as usize;
            let taps = |shifts: Vec<(usize, i64)>| -> Vec<AxisTap> {
                let tap = |(kernel, shift): (usize, i64)| AxisTap {
                    kernel,
                    phase: 0,
                    shift: (shift - low) as usize,
                };
                shifts.into_iter().map(tap).collect()
            };
            let reach = (high - low) as usize;
            let axis = Axis { stride: 1, phases: vec![0], lead, reach, step: strides[a] };
            (axis, all.into_iter().map(taps).enumerate().collect())
        });
        Layout::new(per_axis, kernel, w[1], w[0] / groups, groups, false)
    }

    /// With planes even where the input itself would do.
    pub(super) fn with_planes(self) -> Layout {
        Layout { plain_1x1: false, ..self }
    }

    /// Whether a channel's planes are one row without gaps between its elements.
    pub(super) fn is_line(&self, g: &Geometry) -> bool {
        let axis = &self.axes[2];
        g.plane[..2] == [1, 1] && axis.stride == 1 && axis.phases == [0] && g.lens[..2] == [1, 1]
    }

    /// Of a line: positions that planes hold beyond those of the outputs.
    pub(super) fn reach(&self) -> usize {
        self.axes[2].reach
    }

    /// Writes the part of a line that begins at a position.
    #[inline(always)]
    pub(super) fn fill_line(&self, position: usize, from: &[f32], to: &mut [f32]) {
        let lead = self.axes[2].lead;
        let start = lead.saturating_sub(position).min(to.len());
        let end = (lead + from.len()).saturating_sub(position).min(to.len()).max(start);
        to[..start].fill(0.0);
        to[end..].fill(0.0);
        let first = (position + start).saturating_sub(lead).min(from.len());
        to[start..end].copy_from_slice(&from[first..first + (end - start)]);
    }

    fn new(
        per_axis: [(Axis, AxisParts); MAX_AXES],
        kernel: [usize; MAX_AXES],
        rows: usize,
        channels: usize,
        groups: usize,
        plain_1x1: bool,
    ) -> Layout {
        let mut parts = Vec::new();
        for (start0, taps0) in &per_axis[0].1 {
            for (start1, taps1) in &per_axis[1].1 {
                for (start2, taps2) in &per_axis[2].1 {
                    let mut taps = Vec::new();
                    for a in taps0 {
                        for b in taps1 {
                            for c in taps2 {
                                let number = (a.kernel * kernel[1] + b.kernel) * kernel[2];
                                taps.push(Tap {
                                    kernel: number + c.kernel,
                                    phase: [a.phase, b.phase, c.phase],
                                    shift: [a.shift, b.shift, c.shift],
                                });
                            }
                        }
                    }
                    parts.push(Part { taps, start: [*start0, *start1, *start2] });
                }
            }
        }
        let mut rows_read: Vec<_> =
            parts.iter().flat_map(|p| &p.taps).map(|t| (t.phase, t.shift[0], t.shift[1])).collect();
        rows_read.sort_unstable();
        rows_read.dedup();
        let read_rows = rows_read.len().max(1);
        let kernel_len = kernel.iter().product();
        let axes = per_axis.map(|(axis, _)| axis);
        Layout { axes, parts, groups, rows, channels, kernel_len, read_rows, plain_1x1 }
    }

    /// Shapes are [N, C, S...].
    pub(super) fn geometry(&self, x: &[usize], y: &[usize]) -> Geometry {
        let (lens, outs) = (widened(&x[2..], 1), widened(&y[2..], 1));
        // The part that starts at 0 has the most outputs.
        let plane: [usize; MAX_AXES] =
            from_fn(|a| outs[a].div_ceil(self.axes[a].step) + self.axes[a].reach);
        let planes: usize = self.axes.iter().map(|a| a.phases.len()).product();
        Geometry {
            images: x[0],
            lens,
            outs,
            in_len: lens.iter().product(),
            channel_len: planes * plane.iter().product::<usize>(),
            out_len: outs.iter().product(),
            direct: self.plain_1x1,
            plane,
        }
    }

    /// Positions of a part: those of its outputs, and those dropped between them.
    pub(super) fn positions(&self, g: &Geometry, part: usize) -> usize {
        let start = self.parts[part].start;
        let [d, h, w]: [usize; MAX_AXES] =
            from_fn(|a| g.outs[a].saturating_sub(start[a]).div_ceil(self.axes[a].step));
        match d * h * w {
            0 => 0,
            _ => ((d - 1) * g.plane[1] + h - 1) * g.plane[2] + w,
        }
    }

    /// Offset of what a tap reads for position 0, from the start of a channel's planes.
    pub(super) fn place(&self, g: &Geometry, tap: &Tap) -> usize {
        let [_, n1, n2] = from_fn(|a| self.axes[a].phases.len());
        let plane = (tap.phase[0] * n1 + tap.phase[1]) * n2 + tap.phase[2];
        let within = (tap.shift[0] * g.plane[1] + tap.shift[1]) * g.plane[2] + tap.shift[2];
        plane * g.plane.iter().product::<usize>() + within
    }

    /// For each of the positions from `position` on, the place of its output in a channel, or
    /// `u32::MAX` where it has none.
    #[inline(always)]
    pub(super) fn destinations(&self, g: &Geometry, part: usize, position: usize, to: &mut [u32]) {
        let start = self.parts[part].start;
        let [p0, p1, p2] = [
            position / (g.plane[1] * g.plane[2]),
            position / g.plane[2] % g.plane[1],
            position % g.plane[2],
        ];
        let place = |a: usize, p: usize| p * self.axes[a].step + start[a];
        let (mut d, mut h, mut w) = (place(0, p0), place(1, p1), place(2, p2));
        let mut columns = g.plane[2] - p2;
        let mut rows = g.plane[1] - p1;
        for slot in to {
            let inside = d < g.outs[0] && h < g.outs[1] && w < g.outs[2];
            *slot = match inside {
                true => ((d * g.outs[1] + h) * g.outs[2] + w) as u32,
                false => u32::MAX,
            };
            w += self.axes[2].step;
            columns -= 1;
            if columns == 0 {
                (w, columns) = (place(2, 0), g.plane[2]);
                h += self.axes[1].step;
                rows -= 1;
                if rows == 0 {
                    (h, rows) = (place(1, 0), g.plane[1]);
                    d += self.axes[0].step;
                }
            }
        }
    }

    /// Shows every row of a channel's planes in their order.
    #[inline(always)]
    pub(super) fn walk(&self, g: &Geometry, rows: &mut impl PlaneRows) {
        let width = g.plane[2];
        if width == 0 {
            return;
        }
        let [a0, a1, a2] = &self.axes;
        for f0 in &a0.phases {
            for f1 in &a1.phases {
                for f2 in &a2.phases {
                    // Positions whose element is inside the row.
                    let skip = a2.lead.saturating_sub(*f2).div_ceil(a2.stride).min(width);
                    let room = (g.lens[2] + a2.lead).saturating_sub(*f2);
                    let end = room.div_ceil(a2.stride).clamp(skip, width);
                    let first = skip * a2.stride + f2;
                    for q0 in 0..g.plane[0] {
                        let d = (q0 * a0.stride + f0).wrapping_sub(a0.lead);
                        for q1 in 0..g.plane[1] {
                            let h = (q1 * a1.stride + f1).wrapping_sub(a1.lead);
                            let outside = d >= g.lens[0] || h >= g.lens[1] || skip == end;
                            rows.row(match outside {
                                true => None,
                                false => Some(Line {
                                    start: (d * g.lens[1] + h) * g.lens[2] + first - a2.lead,
                                    stride: a2.stride,
                                    skip,
                                    end,
                                }),
                            });
                        }
                    }
                }
            }
        }
    }
}

/// What a row of a plane shows of the channel; around it is padding.
#[derive(Clone, Copy, Debug)]
pub(super) struct Line {
    /// The first element in the channel, and how far the next one is.
    pub(super) start: usize,
    pub(super) stride: usize,
    /// The positions of the row that have an element.
    pub(super) skip: usize,
    pub(super) end: usize,
}

impl Line {
    /// The elements in a channel, with those between them.
    #[inline(always)]
    pub(super) fn of<'a, T>(&self, channel: &'a [T]) -> &'a [T] {
        let last = (self.end - self.skip - 1) * self.stride;
        &channel[self.start..=self.start + last]
    }
}

/// Where the rows of planes go.
pub(super) trait PlaneRows {
    /// The next row; `None` is padding all over. Must be `#[inline(always)]`.
    fn row(&mut self, line: Option<Line>);
}
