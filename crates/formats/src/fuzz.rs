//! Bodies of fuzz targets: plain functions of bytes that must return. They are run on mutated
//! golden files by a test, and by libFuzzer from the crate in `fuzz/`.

use cyb_tensor::{AlignedBytes, Bytes, DType, Tensor};

use crate::{Metadata, gguf, npz, safetensors, torch};

/// Parses `data` as a GGUF file; what is accepted must keep the parser's promises.
///
/// # Panics
/// When an accepted header has a tensor outside the file, or two that overlap, or when the file
/// cannot be written and read again without a difference.
pub fn fuzz_gguf(data: &[u8]) {
    if let Ok(header) = gguf::parse(data, data.len() as u64) {
        let tensors = header.tensors.values();
        check_places(data, tensors.map(|t| (t.dtype, &t.shape[..], t.offset, t.len)));
        let once = rewrite(data, header);
        let again = gguf::parse(&once, once.len() as u64).expect("what was written can be read");
        assert!(rewrite(&once, again) == once, "a file changes when it is read and written");
    }
}

/// The same model, written anew.
fn rewrite(data: &[u8], header: gguf::Header) -> Vec<u8> {
    let metadata = Metadata::from_entries("".as_ref(), header.metadata);
    let tensors: Vec<(String, Tensor)> = header
        .tensors
        .into_iter()
        .map(|(name, t)| {
            let bytes = AlignedBytes::from_slice(&data[t.offset..t.offset + t.len]);
            let tensor = Tensor::new(t.dtype, t.shape, Bytes::owned(bytes));
            (name, tensor.expect("a tensor's length fits its shape"))
        })
        .collect();
    let mut out = Vec::new();
    gguf::write_to(&mut out, &metadata, tensors.iter().map(|(n, t)| (n.as_str(), t)))
        .expect("what was read can be written");
    out
}

/// Parses `data` as a safetensors file, as [`fuzz_gguf`] does for GGUF.
///
/// # Panics
/// When an accepted header has a tensor outside the file, or two that overlap.
pub fn fuzz_safetensors(data: &[u8]) {
    if let Ok(header) = safetensors::parse(data) {
        let tensors = header.tensors.values();
        check_places(data, tensors.map(|t| (t.dtype, &t.shape[..], t.offset, t.len)));
    }
}

fn check_places<'a>(
    data: &[u8],
    tensors: impl Iterator<Item = (DType, &'a [usize], usize, usize)>,
) {
    let mut spans: Vec<(usize, usize)> = Vec::new();
    for (dtype, shape, offset, len) in tensors {
        let want = cyb_tensor::byte_len(dtype, shape);
        assert_eq!(want, Ok(len), "a tensor's length does not fit its shape");
        let end = offset.checked_add(len).expect("a tensor ends in the file");
        assert!(end <= data.len(), "a tensor ends outside the file");
        spans.push((offset, end));
    }
    spans.sort_unstable();
    assert!(spans.windows(2).all(|w| w[0].1 <= w[1].0), "tensors overlap");
}

/// Reads `data` as an archive of arrays.
pub fn fuzz_npz(data: &[u8]) {
    let Ok(arrays) = npz::read_bytes(data) else { return };
    let named = arrays.iter().map(|(name, tensor)| (name.as_str(), tensor));
    let mut out = std::io::Cursor::new(Vec::new());
    npz::write_to(&mut out, named).expect("what was read can be written");
}

/// Parses `data` as a PyTorch checkpoint.
///
/// # Panics
/// When an accepted checkpoint has a tensor outside its storage, or a storage outside the file.
pub fn fuzz_torch(data: &[u8]) {
    let Ok(tensors) = torch::parse(data) else { return };
    for (name, tensor) in tensors {
        let width = tensor.dtype.layout().bytes;
        let numbers = data[tensor.storage.clone()].len() / width;
        let view = &tensor.view;
        if view.shape.contains(&0) {
            continue;
        }
        let far = view.shape.iter().zip(&view.strides).map(|(n, stride)| (n - 1) * stride);
        assert!(view.offset + far.sum::<usize>() < numbers, "{name} is outside its storage");
    }
}
