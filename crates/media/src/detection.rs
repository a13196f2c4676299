//! From the output of a detector's head to boxes.

/// A box in pixels: left, top, right, bottom.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Box2 {
    pub x1: f32,
    pub y1: f32,
    pub x2: f32,
    pub y2: f32,
}

impl Box2 {
    /// 0 for a line or a point.
    pub fn area(&self) -> f32 {
        (self.x2 - self.x1).max(0.0) * (self.y2 - self.y1).max(0.0)
    }

    /// Intersection over union, 0 where the union is empty.
    pub fn iou(&self, other: &Box2) -> f32 {
        let width = (self.x2.min(other.x2) - self.x1.max(other.x1)).max(0.0);
        let height = (self.y2.min(other.y2) - self.y1.max(other.y1)).max(0.0);
        let common = width * height;
        let union = self.area() + other.area() - common;
        if union > 0.0 { common / union } else { 0.0 }
    }

    /// The same box with its corners in order.
    pub fn ordered(&self) -> Box2 {
        Box2 {
            x1: self.x1.min(self.x2),
            y1: self.y1.min(self.y2),
            x2: self.x1.max(self.x2),
            y2: self.y1.max(self.y2),
        }
    }
}

/// What a head found at one place.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    pub bbox: Box2,
    pub class: usize,
    pub score: f32,
}

/// What is kept.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Thresholds {
    /// Scores must be above this.
    pub confidence: f32,
    /// Of two boxes of a class that overlap by more than this the better one stays.
    pub iou: f32,
    /// Most detections of a picture.
    pub max_detections: usize,
}

impl Default for Thresholds {
    fn default() -> Thresholds {
        Thresholds { confidence: 0.25, iou: 0.45, max_detections: 300 }
    }
}

/// Candidates that take part in suppression, the best ones.
const MAX_CANDIDATES: usize = 30_000;

/// How a head lays out its output, whose batch is 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Head {
    /// `[1, 4 + classes, places]`: center, size, a score a class (YOLOv8 to v12).
    Columns { classes: usize, places: usize },
    /// The same transposed: `[1, places, 4 + classes]`.
    Rows { classes: usize, places: usize },
    /// `[1, places, 5 + classes]`: center, size, objectness, a score a class (YOLOv5, v7).
    Objectness { classes: usize, places: usize },
    /// `[1, places, 6]`: corners, score, class; suppression is done (YOLOv10, `nms=True`).
    EndToEnd { places: usize },
}

/// An output that is no detector's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "an output of shape {shape:?} is no detection head for {}input {input:?}; known are [1, 4+classes, places] (v8, v11), [1, places, 5+classes] (v5) and [1, places, 6] (end to end)",
    classes.map(|n| format!("{n} classes and ")).unwrap_or_default()
)]
pub struct HeadError {
    shape: Vec<usize>,
    input: [u32; 2],
    classes: Option<usize>,
}

impl Head {
    /// Tells the layout by the output's shape, the size of the input (width, height), and the
    /// number of classes where it is known. Places are counted: a head without anchors has one for
    /// each cell of the grids of strides 8, 16, 32 (and 64), one with anchors has three.
    ///
    /// # Errors
    /// No layout fits.
    pub fn of(shape: &[usize], input: [u32; 2], classes: Option<usize>) -> Result<Head, HeadError> {
        let fail = || HeadError { shape: shape.to_vec(), input, classes };
        let &[1, rows, columns] = shape else { return Err(fail()) };
        let cells = |strides: &[u32]| -> usize {
            strides.iter().map(|s| (input[0] / s) as usize * (input[1] / s) as usize).sum()
        };
        let grids = [cells(&[8, 16, 32]), cells(&[8, 16, 32, 64])];
        let anchored = grids.map(|n| 3 * n);
        let has = |width: usize, more: usize| match classes {
            Some(n) => width == n + more,
            None => width > more,
        };
        let head = if grids.contains(&columns) && has(rows, 4) {
            Head::Columns { classes: rows - 4, places: columns }
        } else if anchored.contains(&rows) && has(columns, 5) {
            Head::Objectness { classes: columns - 5, places: rows }
        } else if grids.contains(&rows) && has(columns, 4) {
            Head::Rows { classes: columns - 4, places: rows }
        } else if columns == 6 && !anchored.contains(&rows) && !grids.contains(&rows) {
            Head::EndToEnd { places: rows }
        } else if columns > rows && has(rows, 4) {
            // Grids of other strides.
            Head::Columns { classes: rows - 4, places: columns }
        } else if rows > columns && has(columns, 5) {
            Head::Objectness { classes: columns - 5, places: rows }
        } else if rows > columns && classes.is_some() && has(columns, 4) {
            Head::Rows { classes: columns - 4, places: rows }
        } else {
            return Err(fail());
        };
        Ok(head)
    }

    /// The number of classes, where the layout says it.
    pub fn classes(&self) -> Option<usize> {
        match *self {
            Head::Columns { classes, .. }
            | Head::Rows { classes, .. }
            | Head::Objectness { classes, .. } => Some(classes),
            Head::EndToEnd { .. } => None,
        }
    }

    /// Boxes above the confidence in pixels of the input, the best first, those of lower scores
    /// that overlap suppressed.
    ///
    /// # Panics
    /// If `output` has another number of elements than the layout.
    pub fn detections(&self, output: &[f32], thresholds: Thresholds) -> Vec<Candidate> {
        let candidates = self.candidates(output, thresholds.confidence);
        match self {
            Head::EndToEnd { .. } => {
                let mut sorted = sorted(candidates);
                sorted.truncate(thresholds.max_detections);
                sorted
            }
            _ => suppress(candidates, thresholds),
        }
    }

    fn candidates(&self, output: &[f32], confidence: f32) -> Vec<Candidate> {
        let (width, places) = match *self {
            Head::Columns { classes, places } | Head::Rows { classes, places } => {
                (4 + classes, places)
            }
            Head::Objectness { classes, places } => (5 + classes, places),
            Head::EndToEnd { places } => (6, places),
        };
        assert_eq!(output.len(), width * places, "the output has the head's shape");
        let mut found = Vec::new();
        for place in 0..places {
            let at = |i: usize| match self {
                Head::Columns { .. } => output[i * places + place],
                _ => output[place * width + i],
            };
            let corners = || {
                let (x, y, w, h) = (at(0), at(1), at(2) / 2.0, at(3) / 2.0);
                Box2 { x1: x - w, y1: y - h, x2: x + w, y2: y + h }
            };
            // The first of equal scores; NaN is never above anything.
            let best = |first: usize| {
                (first..width).fold((0, f32::NEG_INFINITY), |best, i| {
                    if at(i) > best.1 { (i - first, at(i)) } else { best }
                })
            };
            let candidate = match self {
                Head::Columns { .. } | Head::Rows { .. } => {
                    let (class, score) = best(4);
                    Candidate { bbox: corners(), class, score }
                }
                Head::Objectness { .. } => {
                    let (class, score) = best(5);
                    let object = at(4);
                    let score = if object > confidence { score * object } else { f32::NAN };
                    Candidate { bbox: corners(), class, score }
                }
                Head::EndToEnd { .. } => {
                    let bbox = Box2 { x1: at(0), y1: at(1), x2: at(2), y2: at(3) };
                    // Rows that are not in use have class -1 or score 0.
                    let score = if at(5) >= 0.0 { at(4) } else { f32::NAN };
                    Candidate { bbox: bbox.ordered(), class: at(5) as usize, score }
                }
            };
            let b = candidate.bbox;
            let finite = [b.x1, b.y1, b.x2, b.y2].iter().all(|v| v.is_finite());
            if candidate.score > confidence && finite {
                found.push(candidate);
            }
        }
        found
    }
}

/// The best first; of equal ones the first.
fn sorted(mut candidates: Vec<Candidate>) -> Vec<Candidate> {
    candidates.sort_by(|a, b| b.score.total_cmp(&a.score));
    candidates
}

/// Non-maximum suppression in each class. The result is in descending order of scores.
pub fn suppress(candidates: Vec<Candidate>, thresholds: Thresholds) -> Vec<Candidate> {
    let mut kept: Vec<Candidate> = Vec::new();
    let ordered = candidates.into_iter().map(|c| Candidate { bbox: c.bbox.ordered(), ..c });
    for candidate in sorted(ordered.collect()).into_iter().take(MAX_CANDIDATES) {
        if kept.len() >= thresholds.max_detections {
            break;
        }
        let overlaps = |k: &Candidate| {
            k.class == candidate.class && k.bbox.iou(&candidate.bbox) > thresholds.iou
        };
        if !kept.iter().any(overlaps) {
            kept.push(candidate);
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(b: [f32; 4], class: usize, score: f32) -> Candidate {
        Candidate { bbox: Box2 { x1: b[0], y1: b[1], x2: b[2], y2: b[3] }, class, score }
    }

    #[test]
    fn layouts_are_told_apart() {
        let of = |shape: &[usize], classes| Head::of(shape, [320, 320], classes).ok();
        assert_eq!(of(&[1, 22, 2100], Some(18)), Some(Head::Columns { classes: 18, places: 2100 }));
        assert_eq!(of(&[1, 22, 2100], None), Some(Head::Columns { classes: 18, places: 2100 }));
        assert_eq!(of(&[1, 6300, 85], None), Some(Head::Objectness { classes: 80, places: 6300 }));
        assert_eq!(of(&[1, 6300, 6], Some(1)), Some(Head::Objectness { classes: 1, places: 6300 }));
        assert_eq!(of(&[1, 2100, 84], Some(80)), Some(Head::Rows { classes: 80, places: 2100 }));
        assert_eq!(of(&[1, 300, 6], Some(80)), Some(Head::EndToEnd { places: 300 }));
        assert_eq!(of(&[1, 300, 6], Some(2)), Some(Head::EndToEnd { places: 300 }));
        assert_eq!(of(&[1, 1000], None), None);
        assert_eq!(of(&[2, 22, 2100], None), None);
        assert_eq!(of(&[1, 22, 2100], Some(80)), None);
        let error = Head::of(&[1, 1000], [320, 320], None).unwrap_err().to_string();
        assert!(error.contains("[1, 1000]"), "{error}");
    }

    #[test]
    fn each_layout_gives_the_same_box() {
        let thresholds = Thresholds::default();
        let want = candidate([10.0, 30.0, 30.0, 70.0], 1, 0.9);
        let columns = [20.0, 0.0, 50.0, 0.0, 20.0, 0.0, 40.0, 0.0, 0.1, 0.0, 0.9, 0.2];
        let head = Head::Columns { classes: 2, places: 2 };
        assert_eq!(head.detections(&columns, thresholds), [want]);
        let rows = [20.0, 50.0, 20.0, 40.0, 0.1, 0.9, 0.0, 0.0, 0.0, 0.0, 0.0, 0.2];
        let head = Head::Rows { classes: 2, places: 2 };
        assert_eq!(head.detections(&rows, thresholds), [want]);
        let rows = [20.0, 50.0, 20.0, 40.0, 0.5, 0.1, 0.9, 20.0, 50.0, 20.0, 40.0, 0.2, 0.1, 1.0];
        let head = Head::Objectness { classes: 2, places: 2 };
        let want_low = Candidate { score: 0.45, ..want };
        assert_eq!(head.detections(&rows, thresholds), [want_low]);
        let rows = [10.0, 30.0, 30.0, 70.0, 0.9, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, -1.0];
        let head = Head::EndToEnd { places: 2 };
        assert_eq!(head.detections(&rows, thresholds), [want]);
    }

    #[test]
    fn suppression_is_within_a_class() {
        let boxes = vec![
            candidate([0.0, 0.0, 10.0, 10.0], 0, 0.5),
            candidate([1.0, 0.0, 11.0, 10.0], 0, 0.8),
            candidate([1.0, 0.0, 11.0, 10.0], 1, 0.4),
            candidate([100.0, 0.0, 110.0, 10.0], 0, 0.3),
        ];
        let kept = suppress(boxes.clone(), Thresholds::default());
        assert_eq!(kept.iter().map(|c| c.score).collect::<Vec<_>>(), [0.8, 0.4, 0.3]);
        let none =
            suppress(boxes.clone(), Thresholds { max_detections: 0, ..Thresholds::default() });
        assert!(none.is_empty());
        // A threshold of 0 keeps what does not touch.
        let apart = suppress(boxes, Thresholds { iou: 0.0, ..Thresholds::default() });
        assert_eq!(apart.len(), 3);
    }

    #[test]
    fn lines_and_points_have_no_overlap() {
        let line = candidate([5.0, 0.0, 5.0, 10.0], 0, 0.9);
        let point = candidate([5.0, 5.0, 5.0, 5.0], 0, 0.8);
        assert_eq!(line.bbox.iou(&line.bbox), 0.0);
        assert_eq!(point.bbox.iou(&line.bbox), 0.0);
        assert_eq!(suppress(vec![line, line, point], Thresholds::default()).len(), 3);
    }

    #[test]
    fn numbers_that_are_none_are_no_boxes() {
        let head = Head::Columns { classes: 1, places: 3 };
        let nan = f32::NAN;
        let output =
            [1.0, nan, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, f32::INFINITY, 1.0, nan, 0.9, 0.9];
        let kept = head.detections(&output, Thresholds::default());
        assert_eq!(kept.len(), 1);
    }

    /// The boxes of onnx-mlir's issue 1035: corners in any order.
    #[test]
    fn corners_may_come_in_any_order() {
        let mixed = candidate([10.0, 10.0, 0.0, 0.0], 0, 0.9);
        let plain = candidate([0.0, 0.0, 10.0, 10.0], 0, 0.8);
        assert_eq!(suppress(vec![mixed, plain], Thresholds::default()).len(), 1);
    }
}
