//! A detector against the same steps in Python: OpenCV, Pillow and ONNX Runtime.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use cyb_llm::media::Image;
use cyb_llm::{Config, DetectOptions, Detection, Detector, Runtime};
use serde_json::Value;

/// The confidence that the golden detections were made with.
const CONFIDENCE: f32 = 0.05;

fn detector(threads: usize) -> Detector {
    let config = Config { threads: Some(threads), ..Config::auto() };
    let path = cyb_testkit::model("320n.onnx");
    Runtime::new(config).unwrap().load_detector(path.to_str().unwrap(), None).unwrap()
}

fn picture(name: &str) -> Image {
    let bytes = std::fs::read(cyb_testkit::golden(&format!("detect/{name}"))).unwrap();
    Image::decode(&bytes).unwrap()
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect()
}

fn compare(name: &str, got: &[Detection], want: &[Value]) {
    assert_eq!(got.len(), want.len(), "{name}: {got:?}, but the reference finds {want:?}");
    for (got, want) in got.iter().zip(want) {
        assert_eq!(got.class, want["class"].as_str().unwrap(), "{name}");
        assert_eq!(got.class_id as u64, want["class_id"].as_u64().unwrap(), "{name}");
        let score = want["confidence"].as_f64().unwrap();
        // Decoders of JPEG may differ by a level a pixel: the standard leaves rounding open.
        let allowed = if name.ends_with(".jpg") { 5e-3 } else { 1e-3 };
        assert!((f64::from(got.confidence) - score).abs() < allowed, "{name}: {got:?}, {want}");
        for (got, want) in got.bbox.iter().zip(numbers(&want["bbox"])) {
            assert!((f64::from(*got) - want).abs() < 1.0, "{name}: {got} is not {want}");
        }
    }
}

#[test]
fn detections_are_those_of_the_reference() {
    let detector = detector(2);
    let text = std::fs::read_to_string(cyb_testkit::golden("detect/expected.json")).unwrap();
    let expected: Value = serde_json::from_str(&text).unwrap();
    let expected = expected.as_object().unwrap();
    assert!(expected.len() >= 6);
    let options = DetectOptions { confidence: CONFIDENCE, ..DetectOptions::default() };
    for (name, want) in expected {
        let picture = picture(name);
        let size = [picture.width(), picture.height()].map(f64::from);
        assert_eq!(numbers(&want["size"]), size, "{name}");
        let got = detector.detect(&picture, options).unwrap();
        compare(name, &got, want["detections"].as_array().unwrap());
    }
}

#[test]
fn threads_do_not_change_a_bit() {
    let picture = picture("face.png");
    let options = DetectOptions { confidence: 0.01, ..DetectOptions::default() };
    let one = detector(1).detect(&picture, options).unwrap();
    assert!(!one.is_empty());
    assert_eq!(detector(3).detect(&picture, options).unwrap(), one);
}

#[test]
fn pictures_of_every_shape_are_taken() {
    let detector = detector(2);
    for (width, height) in [(1, 1), (20_000, 2), (3, 5000)] {
        let picture = Image::filled(width, height, [120, 90, 60]).unwrap();
        let found = detector.detect(&picture, DetectOptions::default()).unwrap();
        for d in found {
            let [x1, y1, x2, y2] = d.bbox;
            assert!(0.0 <= x1 && x1 <= x2 && x2 <= width as f32, "{:?}", d.bbox);
            assert!(0.0 <= y1 && y1 <= y2 && y2 <= height as f32, "{:?}", d.bbox);
        }
    }
}

#[test]
fn thresholds_outside_their_range_are_errors() {
    let detector = detector(1);
    let picture = Image::filled(8, 8, [0; 3]).unwrap();
    for (confidence, iou) in [(-0.1, 0.5), (0.5, 1.5), (f32::NAN, 0.5)] {
        let options = DetectOptions { confidence, iou, ..DetectOptions::default() };
        let error = detector.detect(&picture, options).unwrap_err().to_string();
        assert!(error.contains("give 0 to 1"), "{error}");
    }
}

#[test]
fn a_folder_with_a_configuration_is_a_detector() {
    let folder = tempfile::tempdir().unwrap();
    let config = |text: &str| std::fs::write(folder.path().join("config.toml"), text).unwrap();
    let runtime = Runtime::new(Config { threads: Some(1), ..Config::auto() }).unwrap();
    let path = folder.path().to_str().unwrap();
    let model = cyb_testkit::model("320n.onnx");
    for (text, part) in [
        ("model_type = \"bert\"", "yolo"),
        ("model_type = \"yolo\"", "no .onnx file"),
        ("model_type = \"yolo\"\nweights = \"../m.onnx\"", "inside the folder"),
        ("model_type = ", "config.toml"),
    ] {
        config(text);
        let error = runtime.load_detector(path, None).unwrap_err().to_string();
        assert!(error.contains(part) && !error.contains('\n'), "{text}: {error}");
    }
    std::fs::copy(model, folder.path().join("m.onnx")).unwrap();
    config("model_type = \"yolo\"\nnum_classes = 80");
    let error = runtime.load_detector(path, None).unwrap_err().to_string();
    assert!(error.contains("num_classes"), "{error}");
    config("model_type = \"yolo\"\nnum_classes = 18\ninput_size = 256");
    let detector = runtime.load_detector(path, None).unwrap();
    assert_eq!(detector.input_size(), [256, 256]);
    assert!(!detector.detect(&picture("face.png"), DetectOptions::default()).unwrap().is_empty());
}
