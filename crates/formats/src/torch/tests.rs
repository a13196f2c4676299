use super::*;

/// A pickle in a row after the three that come first.
fn legacy(program: &[u8], rest: &[u8]) -> Vec<u8> {
    [LEGACY, b"\x80\x02M\xe9\x03.", b"\x80\x02}.", program, rest].concat()
}

fn golden(name: &str) -> Vec<u8> {
    let dir = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../golden/formats");
    std::fs::read(dir.join(name)).expect("golden files are there")
}

fn problem(bytes: &[u8]) -> String {
    parse(bytes).expect_err("it is no checkpoint").to_string()
}

#[test]
fn both_forms_hold_what_pytorch_put_in() {
    for name in ["checkpoint.bin", "checkpoint-legacy.bin"] {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
        let path = path.join("../../golden/formats").join(name);
        let file = Arc::new(MappedFile::open(&path).expect("it is there"));
        let tensors = read(&file).expect("it is whole");
        let names: Vec<&str> = tensors.keys().map(String::as_str).collect();
        assert_eq!(names, ["plain", "half", "turned", "part", "scalar", "ids", "empty", "shared"]);
        // What the script of the golden files put in: i / 4 - 3.
        let value = |i: usize| i as f32 / 4.0 - 3.0;
        let plain: Vec<f32> = (0..15).map(value).collect();
        assert_eq!(tensors["plain"].to_f32_vec().expect("floats"), plain);
        assert_eq!(tensors["shared"].to_f32_vec().expect("floats"), plain);
        assert_eq!((tensors["half"].dtype(), tensors["half"].shape()), (DType::BF16, &[3, 5][..]));
        assert_eq!(tensors["turned"].shape(), [5, 3]);
        let turned: Vec<f32> = (0..15).map(|i| value(i % 3 * 5 + i / 3)).collect();
        assert_eq!(tensors["turned"].to_f32_vec().expect("floats"), turned);
        let part: Vec<f32> = (0..6).map(|i| value(5 + i / 3 * 5 + i % 3 + 1)).collect();
        assert_eq!(tensors["part"].to_f32_vec().expect("floats"), part);
        assert_eq!(tensors["scalar"].shape(), [0usize; 0]);
        assert_eq!(tensors["ids"].to_vec::<i64>(DType::I64).expect("integers"), [7, -1]);
        assert_eq!(tensors["empty"].shape(), [0, 4]);
    }
}

#[test]
fn whatever_is_no_tensor_is_refused_by_name() {
    let call = b"\x80\x02cos\nsystem\nX\x04\0\0\0ls -\x85R.";
    assert!(problem(&legacy(call, b"")).contains("'os.system'"), "{}", problem(&legacy(call, b"")));
    let named = b"\x80\x04\x8c\x08builtins\x8c\x04eval\x93.";
    assert!(problem(&legacy(named, b"")).contains("builtins.eval"));
    assert!(problem(&golden("checkpoint-calls.bin")).contains("refused"));
    for code in [b'i', b'o', 0x82, 0x92, b'P'] {
        let error = problem(&legacy(&[0x80, 2, b'(', code], b""));
        assert!(error.contains(&format!("{code:#04x}")), "{error}");
    }
}

#[test]
fn damage_is_named() {
    let whole = golden("checkpoint-legacy.bin");
    let error = problem(&whole[..whole.len() - 3]);
    assert!(error.contains("cut or damaged"), "{error}");
    assert!(problem(&whole[..300]).contains("cut"));
    assert!(problem(&legacy(b"\x80\x02]\x94.", b"\x80\x02].")).contains("no table"));
    // Nesting and repetition cost neither stack nor memory.
    let deep = [vec![b']'; 1 << 20], vec![b'a'; (1 << 20) - 1], b".".to_vec()].concat();
    assert!(parse(&legacy(&deep, b"\x80\x02].")).is_err());
    let mut zip = golden("checkpoint.bin");
    let at = zip.windows(4).position(|w| w == b"PK\x01\x02").expect("a directory");
    zip.truncate(at);
    assert!(problem(&zip).contains("archive"));
}

#[test]
fn the_index_of_a_sharded_checkpoint_decides() {
    let dir = tempfile::tempdir().expect("a folder");
    let shard = |number: usize| format!("pytorch_model-0000{number}-of-00002.bin");
    for (number, name) in [(1, "checkpoint.bin"), (2, "checkpoint-legacy.bin")] {
        std::fs::write(dir.path().join(shard(number)), golden(name)).expect("room for it");
    }
    let index = |map: &str| {
        let path = dir.path().join("pytorch_model.bin.index.json");
        let text = format!("{{\"metadata\": {{\"total_size\": 1}}, \"weight_map\": {{{map}}}}}");
        std::fs::write(path, text).expect("room for it");
    };
    let (one, two) = (shard(1), shard(2));
    let all = ["plain", "half", "turned", "part", "scalar", "ids", "empty", "shared"];
    let entry = |name: &str, shard: &str| format!("\"{name}\": \"{shard}\"");
    // Each tensor is in both files.
    let entries: Vec<String> =
        all.iter().enumerate().map(|(i, name)| entry(name, [&one, &two][i % 2])).collect();
    index(&entries.join(", "));
    let model = crate::open(dir.path()).expect("it is whole");
    let named: Vec<&str> = model.tensors.keys().map(String::as_str).collect();
    assert_eq!(named, all);
    assert_eq!(model.notes.len(), 2, "{:?}", model.notes);
    assert_eq!(model.tensors["half"].dtype(), DType::BF16);
    std::fs::remove_file(dir.path().join(&two)).expect("it was there");
    let error = crate::open(dir.path()).expect_err("a shard is missing").to_string();
    assert!(error.contains(&two), "{error}");
    index(&all.map(|name| entry(name, &one)).join(", "));
    let model = crate::open(dir.path()).expect("it is whole");
    assert_eq!(model.tensors.len(), all.len());
    assert_eq!(model.tensors["part"].shape(), [2, 3]);
    index(&format!("{}, \"other\": \"{one}\"", all.map(|name| entry(name, &one)).join(", ")));
    let error = crate::open(dir.path()).expect_err("a tensor is missing").to_string();
    assert!(error.contains("other"), "{error}");
    index(&entry("plain", "../checkpoint.bin"));
    assert!(crate::open(dir.path()).is_err());
}
