//! Files made by the `gguf` Python package, and hostile files made here byte by byte.

use std::path::{Path, PathBuf};

use cyb_tensor::{DType, Tensor};

use super::*;
use crate::{Array, FormatError, Metadata, StringArray, Value};

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../golden/formats").join(name)
}

/// A GGUF file put together without any check.
struct Raw {
    version: u32,
    counts: Option<(u64, u64)>,
    entries: Vec<Vec<u8>>,
    tensors: Vec<Vec<u8>>,
    data: Vec<u8>,
}

fn raw() -> Raw {
    Raw { version: 3, counts: None, entries: vec![], tensors: vec![], data: vec![] }
}

fn string(s: &[u8]) -> Vec<u8> {
    [&(s.len() as u64).to_le_bytes(), s].concat()
}

fn array(type_id: u32, count: u64, elements: &[u8]) -> Vec<u8> {
    [&type_id.to_le_bytes(), &count.to_le_bytes()[..], elements].concat()
}

impl Raw {
    fn entry(mut self, key: &str, type_id: u32, value: &[u8]) -> Raw {
        self.entries.push([&string(key.as_bytes()), &type_id.to_le_bytes()[..], value].concat());
        self
    }

    /// `dims` innermost first, as in the file.
    fn tensor(mut self, name: &str, dims: &[u64], type_id: u32, offset: u64) -> Raw {
        let mut t = string(name.as_bytes());
        t.extend((dims.len() as u32).to_le_bytes());
        dims.iter().for_each(|d| t.extend(d.to_le_bytes()));
        t.extend(type_id.to_le_bytes());
        t.extend(offset.to_le_bytes());
        self.tensors.push(t);
        self
    }

    fn data(mut self, len: usize) -> Raw {
        self.data = vec![7; len];
        self
    }

    fn bytes(&self) -> Vec<u8> {
        let (n_tensors, n_entries) =
            self.counts.unwrap_or((self.tensors.len() as u64, self.entries.len() as u64));
        let mut out = b"GGUF".to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend(n_tensors.to_le_bytes());
        out.extend(n_entries.to_le_bytes());
        self.entries.iter().chain(&self.tensors).for_each(|part| out.extend(part));
        if !self.data.is_empty() {
            out.resize(out.len().next_multiple_of(32), 0);
        }
        out.extend(&self.data);
        out
    }

    fn parse(&self) -> Result<Header, GgufError> {
        let bytes = self.bytes();
        parse(&bytes, bytes.len() as u64)
    }

    fn error(&self) -> String {
        let text = self.parse().unwrap_err().to_string();
        assert!(!text.contains('\n'), "an error is one line: {text}");
        text
    }
}

const F32: u32 = 0;

#[test]
fn python_files_are_read() {
    let model = crate::open(&golden("every_type.gguf")).unwrap();
    let m = &model.metadata;
    assert_eq!(model.format.to_string(), "GGUF v3");
    assert_eq!(m.str("general.architecture"), Ok("golden"));
    assert_eq!(m.value("golden.u8"), Some(&Value::U8(255)));
    assert_eq!(m.value("golden.i8"), Some(&Value::I8(-128)));
    assert_eq!(m.value("golden.u16"), Some(&Value::U16(65535)));
    assert_eq!(m.value("golden.i16"), Some(&Value::I16(-32768)));
    assert_eq!(m.value("golden.u32"), Some(&Value::U32(u32::MAX)));
    assert_eq!(m.value("golden.i32"), Some(&Value::I32(i32::MIN)));
    assert_eq!(m.value("golden.u64"), Some(&Value::U64(u64::MAX)));
    assert_eq!(m.value("golden.i64"), Some(&Value::I64(i64::MIN)));
    assert_eq!(m.value("golden.f32"), Some(&Value::F32(0.1)));
    assert_eq!(m.value("golden.f64"), Some(&Value::F64(0.1)));
    assert_eq!(m.bool("golden.true"), Ok(true));
    assert_eq!(m.bool("golden.false"), Ok(false));
    assert_eq!(m.str("golden.string"), Ok("naïve 🦙\n"));
    assert_eq!(m.str("golden.empty_string"), Ok(""));
    let array = |name: &str| match m.value(&format!("golden.array.{name}")) {
        Some(Value::Array(a)) => a.clone(),
        other => panic!("{name} is {other:?}"),
    };
    assert_eq!(array("u8"), Array::U8(vec![0, 1, 255]));
    assert_eq!(array("i8"), Array::I8(vec![-128, 127]));
    assert_eq!(array("u16"), Array::U16(vec![0, 65535]));
    assert_eq!(array("i16"), Array::I16(vec![-32768, 1]));
    assert_eq!(array("u32"), Array::U32(vec![7, u32::MAX]));
    assert_eq!(array("i32"), Array::I32(vec![-1, i32::MAX]));
    assert_eq!(array("u64"), Array::U64(vec![u64::MAX]));
    assert_eq!(array("i64"), Array::I64(vec![i64::MIN, 5]));
    assert_eq!(array("f32"), Array::F32(vec![0.5, -1.25]));
    assert_eq!(array("f64"), Array::F64(vec![1e300]));
    assert_eq!(array("bool"), Array::Bool(vec![true, false, true]));
    let tokens: StringArray = ["<s>", "▁the", "🦙", "x"].into_iter().collect();
    assert_eq!(array("string"), Array::String(tokens));
    let nested = vec![Array::I32(vec![1, 2]), Array::I32(vec![3])];
    assert_eq!(array("nested"), Array::Array(nested));

    let t = model.tensor("plain.float32").unwrap();
    assert_eq!((t.dtype(), t.shape()), (DType::F32, &[3, 5][..]));
    let ramp: Vec<f32> = (0..15).map(|i| i as f32 - 100.0).collect();
    assert_eq!(t.to_f32_vec().unwrap(), ramp);
    let t = model.tensor("plain.int64").unwrap();
    let ramp: Vec<i64> = (0..15).map(|i| i - 100).collect();
    assert_eq!(t.to_vec::<i64>(DType::I64).unwrap(), ramp);
    assert_eq!(model.tensor("axes.4").unwrap().shape(), [2, 3, 1, 5]);
    let kinds: Vec<DType> = model.tensors.values().map(Tensor::dtype).collect();
    use DType::*;
    assert_eq!(
        kinds,
        [F32, F16, F64, I8, I16, I32, I64, F32, F32, BF16, Q4_0, Q8_0, TQ2_0],
        "in the file's order"
    );
    // The block of -100 .. -69 has the scale -100/127: the code of the first element is 127.
    let t = model.tensor("quant.q8_0").unwrap();
    assert_eq!(t.shape(), [2, 256]);
    assert_eq!(t.bytes().as_slice()[2] as i8, -127);
}

#[test]
fn what_is_written_is_what_python_writes() {
    let path = golden("every_type.gguf");
    let model = crate::open(&path).unwrap();
    let mut out = Vec::new();
    write_to(&mut out, &model.metadata, tensors_of(&model)).unwrap();
    assert_eq!(out, std::fs::read(&path).unwrap());
}

fn tensors_of(model: &crate::ModelFile) -> impl Iterator<Item = (&str, &Tensor)> {
    model.tensors.iter().map(|(name, t)| (name.as_str(), t))
}

#[test]
fn version_2_differs_in_the_number_only() {
    let mut file = raw().tensor("a", &[4], F32, 0).data(32);
    file.version = 2;
    assert_eq!(file.parse().unwrap().version, 2);
}

#[test]
fn any_part_of_a_split_model_opens_it() {
    for n in 1..=3 {
        let model = crate::open(&golden(&format!("split-0000{n}-of-00003.gguf"))).unwrap();
        let names: Vec<&str> = model.tensors.keys().map(String::as_str).collect();
        let want: Vec<String> = (0..5).map(|i| format!("blk.{i}.weight")).collect();
        assert_eq!(names, want);
        assert_eq!(model.paths().len(), 3);
        assert_eq!(model.metadata.u32("golden.block_count"), Ok(5));
        let last = model.tensor("blk.4.weight").unwrap().to_f32_vec().unwrap();
        assert_eq!(last[..2], [-96.0, -95.0]);
    }
}

#[test]
fn faults_of_split_models_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let name = |n: u32| format!("split-{n:05}-of-00003.gguf");
    let at = |n: u32| dir.path().join(name(n));
    let put = |from: u32, to: u32| std::fs::copy(golden(&name(from)), at(to)).unwrap();
    let error = |n: u32| crate::open(&at(n)).unwrap_err().to_string();
    put(1, 1);
    put(3, 3);
    let text = error(3);
    assert!(text.contains("part 2 of 3 is missing"), "{text}");
    assert!(text.contains(at(2).to_str().unwrap()), "{text}");

    put(3, 2);
    let text = error(1);
    assert!(text.contains("split-00002-of-00003.gguf states that it is part 3 of 3"), "{text}");

    put(2, 2);
    let other = dir.path().join("renamed.gguf");
    std::fs::copy(at(2), &other).unwrap();
    let text = crate::open(&other).unwrap_err().to_string();
    assert!(text.contains("does not end in '-00002-of-00003.gguf'"), "{text}");

    // A directory with the parts of one model is that model; with another file it is two.
    assert!(crate::open(dir.path()).unwrap_err().to_string().contains("4 GGUF files"));
    std::fs::remove_file(&other).unwrap();
    assert_eq!(crate::open(dir.path()).unwrap().tensors.len(), 5);
}

#[test]
fn parts_that_do_not_fit_together_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let at = |n: u16| dir.path().join(format!("m-{:05}-of-00002.gguf", n + 1));
    let t = Tensor::from_f32(vec![2], &[1.0, 2.0]).unwrap();
    let put = |n: u16, name: &str, total: i32| {
        let mut m = Metadata::new("");
        m.insert("split.no", n);
        m.insert("split.count", 2u16);
        m.insert("split.tensors.count", total);
        write(&at(n), &m, [(name, &t)]).unwrap();
    };
    put(0, "a", 3);
    put(1, "b", 3);
    let text = crate::open(&at(1)).unwrap_err().to_string();
    assert!(text.contains("the parts have 2 tensors, but 3 belong"), "{text}");
    put(0, "a", 2);
    put(1, "a", 2);
    let text = crate::open(&at(1)).unwrap_err().to_string();
    assert!(text.contains("tensor 'a' is in two parts"), "{text}");
    let mut m = Metadata::new("");
    m.insert("split.no", 9u16);
    m.insert("split.count", 2u16);
    write(&at(0), &m, [("a", &t)]).unwrap();
    let text = crate::open(&at(0)).unwrap_err().to_string();
    assert!(text.contains("numbered 9 (from 0) of 2"), "{text}");
}

/// cases.md L1 and L9: products that wrap, to something small or to what the file has.
#[test]
fn sizes_that_wrap_are_refused() {
    for dims in [
        &[1152, (1 << 42) + 1][..],
        &[1 << 32, 1 << 32],
        &[(1 << 63) + 2, 2],
        &[u64::MAX, 2],
        &[1 << 16, 1 << 16, 1 << 16, 1 << 16],
    ] {
        let file = raw().tensor("blk.0.w", dims, F32, 0).data(64);
        let text = file.error();
        assert!(text.starts_with("tensor size overflows: tensor 'blk.0.w'"), "{text}");
    }
    // The quantised size wraps although the count does not.
    let file = raw().tensor("q", &[1 << 62, 3], 9, 0).data(64);
    assert!(file.error().starts_with("tensor size overflows"), "{}", file.error());
}

/// cases.md L3.
#[test]
fn zero_dimensions_and_empty_names_are_refused() {
    let file = raw().tensor("", &[1, 0], F32, 0);
    assert_eq!(
        file.error(),
        "the description of tensor 0 has no name; the file is damaged or made by a faulty tool"
    );
    let file = raw().tensor("w", &[1, 0], F32, 0);
    assert!(file.error().contains("tensor 'w' has shape [0, 1] with a dimension of zero"));
    let file = raw().entry("", value_type::U8, &[1]);
    assert!(file.error().starts_with("the key of metadata entry 0 has no name"));
}

/// cases.md L11.
#[test]
fn doubles_overlaps_and_holes_are_refused() {
    let two = |a: (u64, u64), b: (u64, u64)| {
        raw().tensor("a", &[a.1], F32, a.0).tensor("b", &[b.1], F32, b.0).data(256)
    };
    assert!(two((0, 8), (32, 8)).parse().is_ok());
    assert!(two((32, 8), (0, 8)).parse().is_ok(), "data may lie in another order");
    assert_eq!(two((0, 16), (32, 8)).error(), "tensors 'a' and 'b' overlap; the file is damaged");
    assert_eq!(two((32, 8), (0, 9)).error(), "tensors 'b' and 'a' overlap; the file is damaged");
    let text = two((0, 8), (64, 8)).error();
    assert!(text.starts_with("32 bytes before tensor 'b' belong to no tensor"), "{text}");
    let text = two((32, 8), (64, 8)).error();
    assert!(text.starts_with("32 bytes before tensor 'a' belong to no tensor"), "{text}");
    let file = raw().tensor("a", &[8], F32, 0).tensor("a", &[8], F32, 32).data(64);
    assert!(file.error().starts_with("tensor 'a' is described twice"));
    let one = |r: Raw, v| r.entry("k", value_type::U8, &[v]);
    let file = one(one(raw(), 1), 2);
    assert!(file.error().starts_with("metadata key 'k' occurs twice"));
    let file = raw().tensor("a", &[8], F32, 8).data(64);
    assert!(file.error().contains("offset 8, which is no multiple of the alignment 32"));
}

/// cases.md L19.
#[test]
fn unknown_types_say_where_they_come_from() {
    let error = |id| raw().tensor("blk.0.w", &[256], id, 0).data(256).error();
    assert_eq!(
        error(36),
        "tensor 'blk.0.w' has type number 36, which is I2_S of the BitNet fork of llama.cpp and \
         unknown outside it; fetch the TQ2_0 or TQ1_0 file of the model"
    );
    for (id, part) in [
        (4, "Q4_2"),
        (5, "withdrawn"),
        (31, "Q4_0 packed for one kind of ARM"),
        (33, "withdrawn"),
        (38, "IQ4_NL"),
        (60, "newer"),
        (137, "ik_llama.cpp"),
        (255, "type number 255"),
        (u32::MAX, "no known tool"),
    ] {
        assert!(error(id).contains(part), "{}", error(id));
        assert!(error(id).contains("blk.0.w"));
    }
}

/// cases.md L21, first half.
#[test]
fn cut_files_name_the_first_short_tensor() {
    let model = crate::open(&golden("every_type.gguf")).unwrap();
    let bytes = std::fs::read(golden("every_type.gguf")).unwrap();
    let cut = |n: usize| parse(&bytes[..n], n as u64).unwrap_err().to_string();
    assert_eq!(
        cut(2000),
        "tensor 'plain.float64' ends at byte 2104, but the file ends at 2000; it is cut, \
         fetch it again"
    );
    assert!(cut(4600).contains("'quant.tq2_0' ends"), "{}", cut(4600));
    for n in 0..4676 {
        assert!(parse(&bytes[..n], n as u64).is_err(), "cut at {n}");
    }
    assert!(parse(&bytes[..4676], 4676).is_ok(), "the padding at the end carries nothing");
    // The head alone is enough when the length is known.
    let header = parse(&bytes[..1900], bytes.len() as u64).unwrap();
    assert_eq!(header.tensors.len(), model.tensors.len());
}

/// cases.md L21, second half.
#[test]
fn a_file_that_shrinks_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    std::fs::copy(golden("every_type.gguf"), &path).unwrap();
    let model = crate::open(&path).unwrap();
    model.check_unchanged().unwrap();
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(4096).unwrap();
    let text = model.check_unchanged().unwrap_err().to_string();
    assert!(text.contains("m.gguf changed while it was open"), "{text}");

    // A file that is only removed stays whole for who has it open.
    std::fs::remove_file(&path).unwrap();
    std::fs::copy(golden("every_type.gguf"), &path).unwrap();
    let model = crate::open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    model.check_unchanged().unwrap();
    assert!(model.tensor("plain.float32").unwrap().to_f32_vec().is_ok());
}

#[test]
fn lengths_and_counts_beyond_the_file_are_refused() {
    let huge = (1u64 << 60).to_le_bytes();
    let text = raw().entry("k", value_type::STRING, &huge).error();
    assert!(text.starts_with("metadata 'k' needs 1152921504606846976 bytes at"), "{text}");
    for type_id in [value_type::U8, value_type::F64, value_type::STRING, value_type::ARRAY] {
        for count in [100, 1 << 40, u64::MAX] {
            let text = raw().entry("k", value_type::ARRAY, &array(type_id, count, &[0; 8])).error();
            assert!(text.starts_with("metadata 'k' needs"), "{text}");
        }
    }
    let mut file = raw();
    for (counts, text) in [
        ((u64::MAX, 0), "the header counts 18446744073709551615 tensors, more than 1048576"),
        ((0, 1 << 21), "the header counts 2097152 metadata entries, more than 1048576"),
        ((1 << 20, 0), "the description of tensor 0 needs 8 bytes"),
        ((0, 1), "the key of metadata entry 0 needs 8 bytes"),
    ] {
        file.counts = Some(counts);
        assert!(file.error().starts_with(text), "{}", file.error());
    }
    let text = raw().entry(&"k".repeat(70_000), value_type::U8, &[1]).error();
    assert!(text.starts_with("the key of metadata entry 0 is 70000 bytes long"), "{text}");
}

#[test]
fn nested_arrays_have_a_depth() {
    let nested = |depth: usize| {
        let innermost = array(value_type::U8, 1, &[5]);
        let value = (1..depth).fold(innermost, |inner, _| array(value_type::ARRAY, 1, &inner));
        raw().entry("k", value_type::ARRAY, &value)
    };
    assert!(nested(MAX_DEPTH).parse().is_ok());
    assert!(nested(MAX_DEPTH + 1).error().contains("nests arrays more than 4 deep"));
    assert!(nested(1000).error().contains("nests arrays"));
}

#[test]
fn odd_headers_are_refused() {
    let version = |v| {
        let mut file = raw();
        file.version = v;
        file.error()
    };
    assert!(version(1).starts_with("GGUF version 1 is not supported"));
    assert!(version(3u32.swap_bytes()).contains("big-endian"));
    assert!(version(4).starts_with("GGUF version 4 is not supported"));
    assert!(version(0).starts_with("GGUF version 0 is not supported"));
    assert!(raw().entry("k", 13, &[0; 8]).error().contains("'k' has the unknown value type 13"));
    let nested = array(99, 1, &[0; 8]);
    assert!(raw().entry("k", value_type::ARRAY, &nested).error().contains("value type 99"));
    assert!(raw().entry("k", value_type::BOOL, &[2]).error().contains("is 2, but a bool"));
    assert!(raw().entry("k", value_type::STRING, &string(b"\xff")).error().contains("not UTF-8"));
    // Two halves of a character in two strings.
    let halves = [string(b"\xc3"), string(b"\xa9")].concat();
    let file = raw().entry("k", value_type::ARRAY, &array(value_type::STRING, 2, &halves));
    assert!(file.error().contains("not UTF-8"));
    for bad in [0u32, 48, 1 << 21] {
        let file = raw().entry(ALIGNMENT_KEY, value_type::U32, &bad.to_le_bytes());
        assert!(file.error().contains("'general.alignment' is"), "{}", file.error());
    }
    let file = raw().entry(ALIGNMENT_KEY, value_type::STRING, &string(b"x"));
    assert!(file.error().contains("'general.alignment' is 'x' (string)"), "{}", file.error());
    assert!(raw().tensor("w", &[1; 5], F32, 0).error().contains("has 5 dimensions, more than 4"));
    let mut file = raw().tensor("w", &[4], F32, 0);
    file.tensors[0][9] = 0xff;
    file.tensors[0][10] = 0xff;
    assert!(file.error().contains("dimensions, more than 4"));
    let file = raw().tensor("w", &[100, 2], 12, 0).data(64);
    assert!(file.error().contains("rows of 100 elements are not whole q4_k blocks of 256"));
    let file = raw().tensor("a\nb", &[0], F32, 0);
    assert!(file.error().contains("'a\\nb'"));
}

#[test]
fn files_that_are_no_gguf_say_what_they_are() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    let error = |bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        let text = crate::open(&path).unwrap_err().to_string();
        assert!(text.contains("model.gguf"), "{text}");
        text
    };
    assert!(error(b"").ends_with("is empty; fetch it again"));
    assert!(error(b"<!DOCTYPE html><html>").contains("a page of HTML"));
    assert!(error(b"version https://git-lfs.github.com/spec/v1\noid").contains("git lfs pull"));
    assert!(error(b"GG").contains("is text"));
    assert!(error(b"GGUF").contains("needs 4 bytes at 4, but the file ends at 4"));
    let text = crate::open(&dir.path().join("absent.gguf")).unwrap_err().to_string();
    assert!(text.contains("absent.gguf: No such file"), "{text}");
    std::fs::write(&path, b"GGUF").unwrap();
    let text = crate::open(&path.join("below")).unwrap_err().to_string();
    assert!(text.contains("below: Not a directory"), "{text}");
    #[cfg(unix)]
    {
        let text = crate::open(Path::new("/dev/null")).unwrap_err().to_string();
        assert_eq!(text, "/dev/null is not a regular file");
    }
    let empty = tempfile::tempdir().unwrap();
    let text = crate::open(empty.path()).unwrap_err().to_string();
    assert!(text.contains("is a directory with no model file that is known"), "{text}");
}

#[test]
fn a_missing_tensor_names_the_nearest() {
    let model = crate::open(&golden("every_type.gguf")).unwrap();
    let err = model.tensor("plain.float3").unwrap_err();
    assert!(matches!(err, FormatError::NoTensor { .. }));
    let text = err.to_string();
    assert!(text.ends_with("there is no tensor 'plain.float3'; the nearest is 'plain.float32'"));
}

#[test]
fn what_cannot_be_written_is_refused_and_leaves_no_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    let meta = Metadata::new("");
    let tensor = |dtype, shape: Vec<usize>| {
        let n = cyb_tensor::byte_len(dtype, &shape).unwrap();
        Tensor::from_elems(dtype, shape, &vec![0u8; n]).unwrap()
    };
    let error = |meta: &Metadata, tensors: &[(&str, &Tensor)]| {
        let text = write(&path, meta, tensors.iter().copied()).unwrap_err().to_string();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "{text}");
        text
    };
    let ok = tensor(DType::F32, vec![2]);
    assert!(error(&meta, &[("w", &tensor(DType::Bool, vec![2]))]).contains("no type number"));
    assert!(error(&meta, &[("w", &tensor(DType::F32, vec![1; 5]))]).contains("5 dimensions"));
    assert!(error(&meta, &[("w", &tensor(DType::F32, vec![2, 0]))]).contains("of zero"));
    assert!(error(&meta, &[("w", &ok), ("w", &ok)]).contains("described twice"));
    assert!(error(&meta, &[("", &ok)]).contains("has no name"));
    let mut bad = Metadata::new("");
    bad.insert(ALIGNMENT_KEY, 33u32);
    assert!(error(&bad, &[("w", &ok)]).contains("general.alignment"));

    let specs = [TensorSpec { name: "w".into(), dtype: DType::F32, shape: vec![2] }];
    let err = write_streamed(&path, &meta, &specs, |_, out| out.write_all(&[0; 7])).unwrap_err();
    assert!(err.to_string().ends_with("tensor 'w' has 7 bytes, but its shape needs 8"));
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

mod round_trip {
    use proptest::collection::{btree_map, vec};
    use proptest::prelude::*;

    use super::*;

    fn array(depth: u32) -> BoxedStrategy<Array> {
        let flat = prop_oneof![
            vec(any::<u8>(), 0..5).prop_map(Array::U8),
            vec(any::<i8>(), 0..5).prop_map(Array::I8),
            vec(any::<u16>(), 0..5).prop_map(Array::U16),
            vec(any::<i16>(), 0..5).prop_map(Array::I16),
            vec(any::<u32>(), 0..5).prop_map(Array::U32),
            vec(any::<i32>(), 0..5).prop_map(Array::I32),
            vec(any::<u64>(), 0..5).prop_map(Array::U64),
            vec(any::<i64>(), 0..5).prop_map(Array::I64),
            vec(any::<f32>(), 0..5).prop_map(Array::F32),
            vec(any::<f64>(), 0..5).prop_map(Array::F64),
            vec(any::<bool>(), 0..5).prop_map(Array::Bool),
            vec(any::<String>(), 0..5).prop_map(|v| Array::String(v.into_iter().collect())),
        ];
        if depth == 0 {
            return flat.boxed();
        }
        prop_oneof![4 => flat, 1 => vec(array(depth - 1), 0..4).prop_map(Array::Array)].boxed()
    }

    fn value() -> impl Strategy<Value = Value> {
        prop_oneof![
            any::<u8>().prop_map(Value::U8),
            any::<i16>().prop_map(Value::I16),
            any::<u32>().prop_map(Value::U32),
            any::<i64>().prop_map(Value::I64),
            any::<f32>().prop_map(Value::F32),
            any::<f64>().prop_map(Value::F64),
            any::<bool>().prop_map(Value::Bool),
            any::<String>().prop_map(Value::String),
            array(3).prop_map(Value::Array),
        ]
    }

    fn tensor() -> impl Strategy<Value = Tensor> {
        let plain = prop::sample::select(vec![DType::I8, DType::F16, DType::F32, DType::F64]);
        let plain = (plain, vec(1usize..5, 0..=MAX_DIMS));
        let blocks = prop::sample::select(vec![DType::Q4_0, DType::Q4_K, DType::IQ4_NL]);
        let blocks = (blocks, vec(1usize..4, 1..=MAX_DIMS)).prop_map(|(dtype, mut shape)| {
            if let Some(inner) = shape.last_mut() {
                *inner *= dtype.layout().block;
            }
            (dtype, shape)
        });
        (prop_oneof![plain, blocks], any::<u8>()).prop_map(|((dtype, shape), salt)| {
            let n = cyb_tensor::byte_len(dtype, &shape).unwrap();
            let bytes: Vec<u8> = (0..n).map(|i| (i as u8).wrapping_mul(31) ^ salt).collect();
            Tensor::from_elems(dtype, shape, &bytes).unwrap()
        })
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            entries in btree_map("[a-z.]{1,12}", value(), 0..8),
            tensors in btree_map("\\PC{1,9}", tensor(), 0..6),
            alignment in prop::option::of((0u32..10).prop_map(|bit| 1u32 << bit)),
        ) {
            let mut metadata = Metadata::new("");
            entries.into_iter().for_each(|(key, v)| metadata.insert(key, v));
            if let Some(n) = alignment {
                metadata.insert(ALIGNMENT_KEY, n);
            }
            let mut out = Vec::new();
            write_to(&mut out, &metadata, tensors.iter().map(|(n, t)| (n.as_str(), t))).unwrap();
            let header = parse(&out, out.len() as u64).unwrap();
            prop_assert!(header.metadata.iter().map(|(k, v)| (k.as_str(), v)).eq(metadata.iter()));
            prop_assert!(header.tensors.keys().eq(tensors.keys()));
            for (info, tensor) in header.tensors.values().zip(tensors.values()) {
                prop_assert_eq!(info.dtype, tensor.dtype());
                prop_assert_eq!(&info.shape[..], tensor.shape());
                prop_assert_eq!(info.offset as u32 % alignment.unwrap_or(32), 0);
                let bytes = &out[info.offset..info.offset + info.len];
                prop_assert_eq!(bytes, tensor.bytes().as_slice());
            }
        }
    }
}
