//! Archives made by NumPy, and hostile ones made here.

use std::path::PathBuf;

use super::*;

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../golden/formats").join(name)
}

fn zip_of(entries: &[(&str, &[u8])]) -> Vec<u8> {
    let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
    for (name, bytes) in entries {
        zip.start_file(*name, SimpleFileOptions::default()).unwrap();
        zip.write_all(bytes).unwrap();
    }
    zip.finish().unwrap().into_inner()
}

fn npy(descr: &str, shape: &str, data: &[u8]) -> Vec<u8> {
    let text = format!("{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}\n");
    let len = (text.len() as u16).to_le_bytes();
    [b"\x93NUMPY\x01\0", &len[..], text.as_bytes(), data].concat()
}

fn error(npy: &[u8]) -> String {
    let text = read_bytes(&zip_of(&[("x.npy", npy)])).unwrap_err().to_string();
    assert!(!text.contains('\n'), "{text}");
    text
}

#[test]
fn numpy_archives_are_read() {
    for name in ["packed.npz", "plain.npz"] {
        let arrays = read(&golden(name)).unwrap();
        let ramp = || (0..12).map(|i| i - 5);
        let shaped = |name: &str, dtype| {
            let t: &Tensor = &arrays[name];
            assert_eq!((t.dtype(), t.shape()), (dtype, &[3, 4][..]), "{name}");
            t
        };
        let want: Vec<f32> = ramp().map(|i| i as f32 / 4.0).collect();
        for order in ["f32", "f32_fortran", "f32_big"] {
            assert_eq!(shaped(order, DType::F32).to_f32_vec().unwrap(), want, "{order}");
        }
        let want: Vec<f64> = ramp().map(|i| i as f64 / 4.0).collect();
        assert_eq!(shaped("f64", DType::F64).to_vec::<f64>(DType::F64).unwrap(), want);
        let halves = shaped("f16", DType::F16).to_vec::<u16>(DType::F16).unwrap();
        let halves: Vec<f64> = halves.iter().map(|&h| half::f16::from_bits(h).into()).collect();
        assert_eq!(halves, want);
        let want: Vec<i64> = ramp().collect();
        for order in ["i64", "i64_fortran_big"] {
            assert_eq!(shaped(order, DType::I64).to_vec::<i64>(DType::I64).unwrap(), want);
        }
        let want: Vec<i8> = ramp().map(|i| i as i8).collect();
        assert_eq!(shaped("i8", DType::I8).to_vec::<i8>(DType::I8).unwrap(), want);
        let want: Vec<u16> = (0..12).collect();
        assert_eq!(shaped("u16", DType::U16).to_vec::<u16>(DType::U16).unwrap(), want);
        let want: Vec<u8> = (0..12).map(|i| i % 2).collect();
        assert_eq!(shaped("bool", DType::Bool).bytes().as_slice(), want);
        for (name, dtype) in [
            ("u8", DType::U8),
            ("i16", DType::I16),
            ("i32", DType::I32),
            ("u32", DType::U32),
            ("u64", DType::U64),
        ] {
            shaped(name, dtype);
        }
        assert_eq!(arrays["scalar"].shape(), [0usize; 0]);
        assert_eq!(arrays["scalar"].to_f32_vec().unwrap(), [2.5]);
        assert_eq!(arrays["empty"].shape(), [0, 3]);
        let bits = &arrays["weights"];
        assert_eq!((bits.dtype(), bits.shape()), (DType::BF16, &[2][..]));
        assert_eq!(bits.to_vec::<u16>(DType::BF16).unwrap(), [0x3f80, 0xc000]);
        assert!(arrays.contains_key("onnx::MatMul_12"), "a name with colons is only a name");
    }
}

#[test]
fn what_is_written_is_what_numpy_writes() {
    let entries = |bytes: Vec<u8>| {
        let mut zip = ZipArchive::new(Cursor::new(bytes)).unwrap();
        (0..zip.len())
            .map(|i| {
                let mut entry = zip.by_index(i).unwrap();
                let mut bytes = Vec::new();
                entry.read_to_end(&mut bytes).unwrap();
                (entry.name().unwrap().into_owned(), bytes)
            })
            .filter(|(name, _)| !name.contains("fortran") && !name.contains("big"))
            .collect::<Vec<_>>()
    };
    let arrays = read(&golden("plain.npz")).unwrap();
    let mut out = Cursor::new(Vec::new());
    write_to(&mut out, arrays.iter().map(|(n, t)| (n.as_str(), t))).unwrap();
    let numpy = entries(std::fs::read(golden("plain.npz")).unwrap());
    assert!(numpy.len() > 10);
    assert_eq!(entries(out.into_inner()), numpy);
}

#[test]
fn bits_keep_their_type() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.npz");
    let t = |dtype, bytes: &[u8]| {
        let n = bytes.len() / dtype_width(dtype);
        Tensor::new(dtype, vec![n], Bytes::owned(AlignedBytes::from_slice(bytes))).unwrap()
    };
    fn dtype_width(dtype: DType) -> usize {
        dtype.layout().bytes
    }
    let tensors = [
        ("a", t(DType::BF16, &[1, 2, 3, 4])),
        ("b", t(DType::F8E4M3, &[5, 6])),
        ("c", t(DType::F8E5M2, &[7])),
    ];
    write(&path, tensors.iter().map(|(n, t)| (*n, t))).unwrap();
    let back = read(&path).unwrap();
    for (name, tensor) in &tensors {
        assert_eq!(back[*name].dtype(), tensor.dtype());
        assert_eq!(back[*name].bytes().as_slice(), tensor.bytes().as_slice());
    }
    let quantised = t_q8();
    let text = write(&path, [("w", &quantised)]).unwrap_err().to_string();
    assert!(text.ends_with("'w' is q8_0, which .npz cannot hold; decode it first"), "{text}");
    assert_eq!(read(&path).unwrap().len(), 3, "the old file stays");
    let a = &tensors[0].1;
    assert!(write(&path, [("a", a), ("a", a)]).unwrap_err().to_string().contains("twice"));
    assert!(write(&path, [("", a)]).unwrap_err().to_string().contains("cannot name an array"));
}

fn t_q8() -> Tensor {
    Tensor::from_elems(DType::Q8_0, vec![32], &[0u8; 34]).unwrap()
}

#[test]
fn what_is_no_archive_of_arrays_is_refused() {
    assert!(read_bytes(b"not a zip").unwrap_err().to_string().contains("not a zip archive"));
    let text = read_bytes(&zip_of(&[("readme.txt", b"hi")])).unwrap_err().to_string();
    assert_eq!(text, "'readme.txt' in the archive is no .npy array; write it with numpy.savez");
    assert!(error(b"hi").contains("cannot be read"));
    assert!(error(b"\x93NUMPX\x01\0\x02\0{}").contains("not a .npy array"));
    assert!(error(b"\x93NUMPY\x09\0\x02\0{}").contains(".npy version 9"));
    assert!(error(b"\x93NUMPY\x02\0\xff\xff\xff\xff{}").contains("4294967295 bytes long"));
    assert!(error(b"\x93NUMPY\x01\0\x02\0{}").contains("is not that of an array"));
    let text = error(&npy("'|O'", "(1,)", b"cos\nsystem"));
    assert!(text.starts_with("array 'x': arrays of '|O' are not supported"), "{text}");
    for descr in ["'<c8'", "'<U5'", "'<M8[ns]'", "[('a', '<f4'), ('b', '<i4')]", "'f4'", "''"] {
        assert!(error(&npy(descr, "(1,)", &[0; 8])).contains("are not supported"), "{descr}");
    }
    let text = error(&npy("'<f4'", "(3,)", &[0; 8]));
    assert_eq!(text, "array 'x': its shape needs 12 bytes, but it has 8; the file is damaged");
    assert!(error(&npy("'<f4'", "(1,)", &[0; 8])).contains("needs 4 bytes, but it has 8"));
    let text = error(&npy("'<f4'", "(4294967296, 4294967296)", &[0; 8]));
    assert!(text.contains("more bytes than can be addressed"), "{text}");
    // The same name, once as plain bits and once typed, is one name twice.
    let bits = npy("'<u2'", "(1,)", &[0; 2]);
    let twice = zip_of(&[("a::bf16.npy", &bits), ("a.npy", &bits)]);
    assert!(read_bytes(&twice).unwrap_err().to_string().contains("'a' is in the archive twice"));
}

#[test]
fn damage_is_noticed() {
    let bytes = std::fs::read(golden("plain.npz")).unwrap();
    let good = read_bytes(&bytes).unwrap();
    // One element of the first array, found by its bytes: only the check sum tells.
    let first = good.values().next().unwrap().bytes().as_slice();
    let at = bytes.windows(first.len()).position(|w| w == first).unwrap();
    let mut bad = bytes.clone();
    bad[at] ^= 1;
    assert!(read_bytes(&bad).unwrap_err().to_string().contains("the file is damaged"));
    for n in 0..bytes.len() {
        assert!(read_bytes(&bytes[..n]).is_err(), "cut at {n}");
    }
}
