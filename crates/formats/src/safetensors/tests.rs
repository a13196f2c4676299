//! A file made by the reference implementation, and hostile ones made here.

use super::*;
use crate::open;

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../golden/formats/plain.safetensors")
}

fn file(json: &str, data: usize) -> Vec<u8> {
    [&(json.len() as u64).to_le_bytes(), json.as_bytes(), &vec![7; data]].concat()
}

fn tensor(name: &str, dtype: &str, shape: &str, start: u64, end: u64) -> String {
    format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{start},{end}]}}"#)
}

fn error(tensors: &[String], data: usize) -> String {
    let text = parse(&file(&format!("{{{}}}", tensors.join(",")), data)).unwrap_err().to_string();
    assert!(!text.contains('\n'), "an error is one line: {text}");
    text
}

#[test]
fn python_files_are_read() {
    let model = open(&golden()).unwrap();
    assert_eq!(model.format, Format::Safetensors);
    assert_eq!(model.metadata.str("format"), Ok("np"));
    let t = model.tensor("a").unwrap();
    assert_eq!((t.dtype(), t.shape()), (DType::F32, &[2, 3][..]));
    assert_eq!(t.to_f32_vec().unwrap(), [-100.0, -99.0, -98.0, -97.0, -96.0, -95.0]);
    assert_eq!(model.tensor("b").unwrap().to_vec::<i64>(DType::I64).unwrap()[3], -97);
    assert_eq!(model.tensor("c").unwrap().dtype(), DType::F16);
    let scalar = model.tensor("scalar").unwrap();
    assert_eq!((scalar.shape(), scalar.to_f32_vec().unwrap()), (&[][..], vec![1.5]));
    assert_eq!(model.tensor("none").unwrap().shape(), [0, 3]);
    assert_eq!(model.tensors.len(), 5);
}

/// cases.md L9.
#[test]
fn sizes_that_wrap_are_refused() {
    for shape in ["[4294967296,4294967296]", "[9223372036854775810,2]"] {
        let text = error(&[tensor("w", "F32", shape, 0, 16)], 16);
        assert!(text.starts_with("tensor size overflows: tensor 'w'"), "{text}");
    }
    assert!(error(&[tensor("w", "F32", "[99999999999999999999]", 0, 16)], 16).contains("header"));
    assert!(error(&[tensor("w", "F32", "[-4]", 0, 16)], 16).contains("header"));
}

/// cases.md L11.
#[test]
fn doubles_overlaps_and_holes_are_refused() {
    let t = |name, start, end| tensor(name, "U8", &format!("[{}]", end - start), start, end);
    assert!(error(&[t("a", 0, 100), t("a", 0, 100)], 100).contains("'a' occurs twice"));
    let text = error(&[t("a", 0, 100), t("b", 50, 150)], 150);
    assert_eq!(text, "tensors 'a' and 'b' overlap; the file is damaged");
    let text = error(&[t("a", 0, 100), t("b", 110, 150)], 150);
    assert_eq!(text, "10 bytes before tensor 'b' belong to no tensor; the file is damaged");
    let text = error(&[t("a", 0, 100)], 120);
    assert_eq!(text, "20 bytes at the end belong to no tensor; the file is damaged");
    let text = error(&[tensor("a", "F32", "[3]", 0, 16)], 16);
    assert!(text.contains("takes 12 bytes, but 16 are given"), "{text}");
    let text = error(&[tensor("a", "F32", "[4]", 16, 0)], 16);
    assert!(text.starts_with("tensor 'a' has the byte range 16 to 0"), "{text}");
    let twice = format!(r#""__metadata__":{{"k":"a","k":"b"}},{}"#, t("a", 0, 4));
    assert!(error(&[twice], 4).contains("'k' occurs twice"));
    let twice = r#""a":{"dtype":"U8","shape":[4],"shape":[4],"data_offsets":[0,4]}"#;
    assert!(error(&[twice.to_owned()], 4).contains("duplicate field"));
}

#[test]
fn cut_and_odd_files_are_refused() {
    let bytes = std::fs::read(golden()).unwrap();
    for n in 0..bytes.len() {
        assert!(parse(&bytes[..n]).is_err(), "cut at {n}");
    }
    let text = parse(&bytes[..bytes.len() - 1]).unwrap_err().to_string();
    assert!(text.contains("ends at byte 394, but the file ends at 393; it is cut"), "{text}");
    let text = error(&[tensor("w", "F4", "[2]", 0, 1)], 1);
    assert!(text.starts_with("tensor 'w' has dtype 'F4', which is not supported"), "{text}");
    assert!(error(&[r#""w":3"#.to_owned()], 0).contains("no table of tensors"));
    let deep = format!(r#""w":{}"#, "[".repeat(100_000));
    assert!(error(&[deep], 0).contains("no table of tensors"));
    let long = parse(&[&u64::MAX.to_le_bytes()[..], b"{}"].concat()).unwrap_err();
    assert!(long.to_string().starts_with("the header is 18446744073709551615 bytes"));
}

/// A model in shards: `files` are written, `map` is the index.
fn sharded(files: &[(&str, &[&str])], map: &[(&str, &str)]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (name, tensors) in files {
        let entries: Vec<String> =
            (0u64..).zip(*tensors).map(|(i, t)| tensor(t, "U8", "[4]", 4 * i, 4 * i + 4)).collect();
        let bytes = file(&format!("{{{}}}", entries.join(",")), 4 * tensors.len());
        std::fs::write(dir.path().join(name), bytes).unwrap();
    }
    let map: Vec<String> = map.iter().map(|(t, f)| format!(r#""{t}":"{f}""#)).collect();
    let index = format!(r#"{{"metadata":{{"total_size":12}},"weight_map":{{{}}}}}"#, map.join(","));
    std::fs::write(dir.path().join(INDEX_NAME), index).unwrap();
    dir
}

/// cases.md L13.
#[test]
fn the_index_decides() {
    let dir = sharded(
        &[
            ("1.safetensors", &["a", "b"]),
            ("2.safetensors", &["c", "x"]),
            ("model.safetensors", &["a"]),
        ],
        &[("c", "2.safetensors"), ("a", "1.safetensors"), ("b", "1.safetensors")],
    );
    let model = open(dir.path()).unwrap();
    assert_eq!(model.tensors.keys().collect::<Vec<_>>(), ["c", "a", "b"]);
    assert_eq!(model.paths().len(), 2);
    assert_eq!(model.notes.len(), 2, "{:?}", model.notes);
    assert!(model.notes[0].contains("1 tensors in '2.safetensors' are not in the index"));
    assert!(model.notes[1].ends_with("model.safetensors is not in the index and ignored"));
}

#[test]
fn faults_of_an_index_are_named() {
    let shard: (&str, &[&str]) = ("1.safetensors", &["a"]);
    let error = |map: &[(&str, &str)]| {
        let text = open(sharded(&[shard], map).path()).unwrap_err().to_string();
        assert!(text.contains(INDEX_NAME), "{text}");
        text
    };
    assert!(error(&[("a", "2.safetensors")]).contains("names '2.safetensors', which is missing"));
    assert!(error(&[("b", "1.safetensors")]).contains("tensor 'b' is not in '1.safetensors'"));
    let twice = [("a", "1.safetensors"), ("a", "1.safetensors")];
    assert!(error(&twice).contains("'a' occurs twice"));
    for path in ["../1.safetensors", "/etc/passwd", "..", "", "sub/1.safetensors"] {
        assert!(error(&[("a", path)]).contains("is no plain file name"), "{path}");
    }
    assert!(error(&[("a", "1.safetensors"), ("b", r"x\\y")]).contains("is no plain file name"));
}

#[test]
fn a_directory_with_several_files_needs_an_index() {
    let dir = sharded(&[("1.safetensors", &["a"]), ("2.safetensors", &["b"])], &[]);
    std::fs::remove_file(dir.path().join(INDEX_NAME)).unwrap();
    let text = open(dir.path()).unwrap_err().to_string();
    assert!(text.contains("2 safetensors files and no index"), "{text}");
    std::fs::remove_file(dir.path().join("2.safetensors")).unwrap();
    assert_eq!(open(dir.path()).unwrap().tensors.len(), 1);
}
