//! Object detection: a picture in, boxes in its own pixels out.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use cyb_formats::onnx::{Dimension, Elem};
use cyb_media::{Head, Image, Letterbox, Thresholds};
use cyb_tensor::Tensor;
use indexmap::IndexMap;
use serde::{Deserialize, Serialize};

use crate::{Error, OnnxModel, Runtime, library};

/// The side of the input where neither the graph nor the metadata says it.
const USUAL_SIDE: u32 = 640;
/// The largest side of an input that a file may ask for.
pub(crate) const MAX_SIDE: u32 = 8192;

/// A detector ready to be shown pictures.
#[derive(Debug)]
pub struct Detector {
    model: OnnxModel,
    /// Name of the input, and its width and height.
    input: String,
    size: [u32; 2],
    /// Whether the graph takes no other size.
    fixed_size: bool,
    names: BTreeMap<usize, String>,
}

/// What to keep of what a detector finds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DetectOptions {
    /// Detections must be surer than this, from 0 to 1.
    pub confidence: f32,
    /// Of two boxes of a class that overlap by more than this (intersection over union), the surer
    /// one stays.
    pub iou: f32,
    /// Most detections of a picture.
    pub max_detections: usize,
}

impl Default for DetectOptions {
    fn default() -> DetectOptions {
        let Thresholds { confidence, iou, max_detections } = Thresholds::default();
        DetectOptions { confidence, iou, max_detections }
    }
}

/// Something that was found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Detection {
    /// The class's name, or its number where it has none.
    pub class: String,
    pub class_id: usize,
    pub confidence: f32,
    /// Left, top, right, bottom in pixels of the upright picture.
    pub bbox: [f32; 4],
}

impl Runtime {
    /// Loads a detector: a path, or a name in the models folder, of an ONNX file or of a folder
    /// whose `config.toml` has `model_type = "yolo"`. Class names come from `labels` where they are
    /// given, else from the folder's configuration or the model's metadata.
    ///
    /// # Errors
    /// There is no such model, it is no ONNX model, or its input is no picture.
    pub fn load_detector(
        &self,
        name: &str,
        labels: Option<Vec<String>>,
    ) -> Result<Detector, Error> {
        let path = library::resolve(name, self.models_dir())?;
        if path.is_dir() {
            return self.detector_in(&path, labels);
        }
        if !self.is_onnx(name)? {
            let why = "it is no ONNX file; give a detector exported to ONNX";
            return Err(Error::Detector { model: name.to_owned(), why: why.to_owned() });
        }
        Detector::new(self.load_onnx(name)?, labels)
    }

    fn detector_in(&self, folder: &Path, labels: Option<Vec<String>>) -> Result<Detector, Error> {
        let fail = |why: String| Error::Detector { model: folder.display().to_string(), why };
        let path = folder.join("config.toml");
        let text = std::fs::read_to_string(&path).map_err(|problem| {
            fail(format!("cannot read config.toml: {problem}; give a detector's folder or file"))
        })?;
        let config: FolderConfig = toml::from_str(&text).map_err(|problem| {
            fail(format!("config.toml: {}", problem.message().replace('\n', " ")))
        })?;
        if config.model_type != "yolo" {
            let kind = &config.model_type;
            return Err(fail(format!("its model_type is {kind:?}; detect takes \"yolo\"")));
        }
        let file = weights(folder, config.weights.as_deref()).map_err(fail)?;
        let model = self.load_onnx(&file.display().to_string())?;
        let detector = Detector::new(model, labels.or(config.labels))?;
        let wrong = |what: &str, want: String, have: String| {
            Err(fail(format!("config.toml says {what} {want}, but the model has {have}")))
        };
        if let Some(side) = config.input_size.filter(|&n| detector.size != [n; 2]) {
            let [width, height] = detector.size;
            if detector.fixed_size {
                return wrong("input_size", side.to_string(), format!("{width} x {height}"));
            }
            return Ok(Detector { size: [side; 2], ..detector });
        }
        match config.num_classes {
            Some(n) if !detector.names.is_empty() && detector.names.len() != n => {
                wrong("num_classes", n.to_string(), detector.names.len().to_string())
            }
            _ => Ok(detector),
        }
    }
}

/// What a detector's folder says of it.
#[derive(Debug, Deserialize)]
struct FolderConfig {
    model_type: String,
    /// The ONNX file; else the folder's only one.
    weights: Option<String>,
    num_classes: Option<usize>,
    /// Side of the input.
    input_size: Option<u32>,
    labels: Option<Vec<String>>,
}

/// The ONNX file of a folder, which a name cannot lead out of.
fn weights(folder: &Path, name: Option<&str>) -> Result<PathBuf, String> {
    if let Some(name) = name {
        let inside = Path::new(name).components().all(|c| matches!(c, Component::Normal(_)));
        return match inside {
            true => Ok(folder.join(name)),
            false => Err(format!("config.toml: weights {name:?} is not a file inside the folder")),
        };
    }
    let entries = std::fs::read_dir(folder).map_err(|problem| problem.to_string())?;
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let mut files: Vec<PathBuf> =
        paths.filter(|path| path.extension().is_some_and(|e| e == "onnx")).collect();
    match (files.pop(), files.len()) {
        (Some(file), 0) => Ok(file),
        (None, _) => Err("there is no .onnx file in it; name one as weights in config.toml".into()),
        (_, more) => {
            Err(format!("there are {} .onnx files; name one as weights in config.toml", more + 1))
        }
    }
}

impl Detector {
    /// A detector from a loaded model.
    ///
    /// # Errors
    /// The model's input is no picture.
    pub fn new(model: OnnxModel, labels: Option<Vec<String>>) -> Result<Detector, Error> {
        let fail = |why: String| Error::Detector { model: model.name().to_owned(), why };
        let [port] = model.inputs() else {
            return Err(fail(format!(
                "it takes {} inputs, a detector takes one picture; use forward",
                model.inputs().len()
            )));
        };
        if port.elem != Some(Elem::F32) {
            return Err(fail(format!(
                "its input {port} is not float32; export the detector in float32"
            )));
        }
        let sides = match port.shape.as_deref() {
            Some([batch, channels, height, width]) => {
                let fits = |dim: &Dimension, n: usize| match dim {
                    Dimension::Known(known) => *known == n,
                    Dimension::Symbol(_) | Dimension::Unknown => true,
                };
                if !fits(batch, 1) || !fits(channels, 3) {
                    return Err(fail(format!(
                        "its input {port} is not one picture of three colors [1, 3, height, width]"
                    )));
                }
                [width, height].map(|dim| match dim {
                    Dimension::Known(n) => u32::try_from(*n).ok(),
                    Dimension::Symbol(_) | Dimension::Unknown => None,
                })
            }
            Some(_) => {
                return Err(fail(format!("its input {port} is not [1, 3, height, width]")));
            }
            None => [None; 2],
        };
        let [height, width] = model
            .metadata()
            .get("imgsz")
            .and_then(|text| sides_of(text))
            .unwrap_or([USUAL_SIDE; 2]);
        let size = [sides[0].unwrap_or(width), sides[1].unwrap_or(height)];
        if size.iter().any(|side| !(1..=MAX_SIDE).contains(side)) {
            return Err(fail(format!(
                "its input is {} x {} pixels; sides from 1 to {MAX_SIDE} are taken",
                size[0], size[1]
            )));
        }
        let names = match labels {
            Some(labels) => labels.into_iter().enumerate().collect(),
            None => model.metadata().get("names").map(|text| class_names(text)).unwrap_or_default(),
        };
        let input = port.name.clone();
        let fixed_size = sides.iter().all(Option::is_some);
        Ok(Detector { model, input, size, fixed_size, names })
    }

    /// Width and height of the model's input.
    pub fn input_size(&self) -> [u32; 2] {
        self.size
    }

    /// Names by class number.
    pub fn class_names(&self) -> &BTreeMap<usize, String> {
        &self.names
    }

    /// Finds objects, the surest first.
    ///
    /// # Errors
    /// A threshold is not from 0 to 1, or the model's output is no detection head.
    pub fn detect(&self, image: &Image, options: DetectOptions) -> Result<Vec<Detection>, Error> {
        for (what, value) in [("confidence", options.confidence), ("iou", options.iou)] {
            if !(0.0..=1.0).contains(&value) {
                return Err(Error::Value { what, why: format!("{value}; give 0 to 1") });
            }
        }
        let fit = Letterbox::fit([image.width(), image.height()], self.size);
        let outputs = self.run(&fit, image)?;
        let count = self.names.keys().next_back().map(|last| last + 1);
        let mut unfit = None;
        for (name, tensor) in &outputs {
            let head = match Head::of(tensor.shape(), self.size, count) {
                Ok(head) => head,
                Err(problem) => {
                    unfit.get_or_insert(self.fail(format!("{name}: {problem}")));
                    continue;
                }
            };
            let values = tensor.to_f32_vec().map_err(|problem| self.fail(problem.to_string()))?;
            let thresholds = Thresholds {
                confidence: options.confidence,
                iou: options.iou,
                max_detections: options.max_detections,
            };
            let found = head.detections(&values, thresholds).into_iter().map(|candidate| {
                let b = fit.back(candidate.bbox);
                Detection {
                    class: self.class_name(candidate.class),
                    class_id: candidate.class,
                    confidence: candidate.score,
                    bbox: [b.x1, b.y1, b.x2, b.y2],
                }
            });
            return Ok(found.collect());
        }
        Err(unfit.unwrap_or_else(|| self.fail("it has no outputs".to_owned())))
    }

    fn run(&self, fit: &Letterbox, image: &Image) -> Result<IndexMap<String, Tensor>, Error> {
        let [width, height] = self.size.map(|n| n as usize);
        let values = fit.tensor(image).map_err(|problem| self.fail(problem.to_string()))?;
        let tensor = Tensor::from_f32(vec![1, 3, height, width], &values)
            .map_err(|problem| self.fail(problem.to_string()))?;
        self.model.run(&IndexMap::from_iter([(self.input.clone(), tensor)]))
    }

    fn class_name(&self, class: usize) -> String {
        self.names.get(&class).cloned().unwrap_or_else(|| class.to_string())
    }

    fn fail(&self, why: String) -> Error {
        Error::Detector { model: self.model.name().to_owned(), why }
    }
}

/// `[height, width]` or one number for both, as ultralytics writes it into the metadata.
pub(crate) fn sides_of(text: &str) -> Option<[u32; 2]> {
    let inner = text.trim().trim_start_matches('[').trim_end_matches(']');
    let numbers: Option<Vec<u32>> = inner.split(',').map(|n| n.trim().parse().ok()).collect();
    match *numbers?.as_slice() {
        [side] => Some([side; 2]),
        [height, width] => Some([height, width]),
        _ => None,
    }
}

/// Class names out of what a Python program prints of a dictionary or a list of strings:
/// `{0: 'person', 1: "rider's horse"}`. What does not read so has no names.
fn class_names(text: &str) -> BTreeMap<usize, String> {
    let mut names = BTreeMap::new();
    let mut rest = text.trim();
    let listed = rest.starts_with('[');
    rest = rest.trim_start_matches(['{', '[']);
    loop {
        rest = rest.trim_start_matches([',', ' ', '\n', '\t']);
        let class = if listed {
            names.len()
        } else {
            let Some((key, tail)) = rest.split_once(':') else { break };
            let key = key.trim().trim_matches(['\'', '"']);
            let Ok(key) = key.parse() else { break };
            rest = tail.trim_start();
            key
        };
        let Some((name, tail)) = quoted(rest) else { break };
        names.insert(class, name);
        rest = tail;
    }
    names
}

/// A quoted string with Python's escapes at the front, and what follows it.
fn quoted(text: &str) -> Option<(String, &str)> {
    let mut chars = text.char_indices();
    let (_, quote) = chars.next().filter(|(_, c)| matches!(c, '\'' | '"'))?;
    let mut name = String::new();
    while let Some((at, c)) = chars.next() {
        match c {
            '\\' => match chars.next()?.1 {
                'n' => name.push('\n'),
                't' => name.push('\t'),
                other => name.push(other),
            },
            c if c == quote => return Some((name, &text[at + c.len_utf8()..])),
            c => name.push(c),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_as_python_prints_them() {
        let names = class_names(r#"{0: 'person', 1: "rider's horse", 17: 'a\'b: c'}"#);
        let want = [(0, "person"), (1, "rider's horse"), (17, "a'b: c")];
        assert_eq!(names, want.map(|(i, n)| (i, n.to_owned())).into());
        let names = class_names(r#"["a", 'b']"#);
        assert_eq!(names, [(0, "a".to_owned()), (1, "b".to_owned())].into());
        assert_eq!(class_names(r#"{"0": "person"}"#), [(0, "person".to_owned())].into());
        for text in ["", "{", "{0", "{x: 'y'}", "{0: 'open", "['"] {
            assert!(class_names(text).is_empty(), "{text}");
        }
    }

    #[test]
    fn sizes_as_python_prints_them() {
        assert_eq!(sides_of("[320, 640]"), Some([320, 640]));
        assert_eq!(sides_of("320"), Some([320, 320]));
        assert_eq!(sides_of("[a]"), None);
        assert_eq!(sides_of("[1, 2, 3]"), None);
    }
}
