//! What a file is, told from its first bytes. Names are not looked at. A file that is no model
//! is still named, because "a page of HTML" or "a Git LFS pointer" tells its owner what happened.

/// What the content of a file looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sniffed {
    Gguf,
    Safetensors,
    /// A checkpoint of PyTorch, a zip or pickles in a row.
    Torch,
    /// Something that is not read as a model: what it is, and what to do about it.
    Foreign {
        what: &'static str,
        remedy: &'static str,
    },
}

const CONVERT: &str = "give a GGUF or safetensors file of the model";
const FETCH: &str = "fetch the model again";
const UNPACK: &str = "unpack it and give the model inside";

/// Magic bytes at the start of a file, what the file then is, and the remedy.
const MAGICS: &[(&[u8], &str, &str)] = &[
    (
        b"version https://git-lfs.github.com/spec/",
        "the text of a Git LFS pointer, not the file it points to",
        "run `git lfs pull` in its repository, or download the file itself",
    ),
    (b"FUGG", "a GGUF magic in the opposite byte order", "fetch the little-endian file"),
    (b"lmgg", "a GGML file of 2023, before GGUF", "fetch or convert a GGUF file of the model"),
    (b"fmgg", "a GGMF file of 2023, before GGUF", "fetch or convert a GGUF file of the model"),
    (b"tjgg", "a GGJT file of 2023, before GGUF", "fetch or convert a GGUF file of the model"),
    (b"algg", "a GGLA adapter of 2023, before GGUF", "fetch or convert a GGUF file of it"),
    (b"\xba\x16\x4f\x2f", "a fastText model", "give it to `classify`"),
    (b"\x80\x02", "a Python pickle", CONVERT),
    (b"\x80\x03", "a Python pickle", CONVERT),
    (b"\x80\x04", "a Python pickle", CONVERT),
    (b"\x80\x05", "a Python pickle", CONVERT),
    (b"\x89HDF\r\n\x1a\n", "an HDF5 file (Keras or TensorFlow weights)", CONVERT),
    (b"\x93NUMPY", "a NumPy array (.npy)", CONVERT),
    (b"\x1f\x8b", "a gzip archive", UNPACK),
    (b"\x28\xb5\x2f\xfd", "a zstd archive", UNPACK),
    (b"\xfd7zXZ\0", "an xz archive", UNPACK),
    (b"BZh", "a bzip2 archive", UNPACK),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive", UNPACK),
    (b"Rar!", "a RAR archive", UNPACK),
    (b"\x7fELF", "a program", "give a model file"),
    (b"%PDF", "a PDF document", "give a model file"),
];

/// Tells what a file is from its bytes. `bytes` may be the whole file or its start.
pub fn sniff(bytes: &[u8]) -> Sniffed {
    if bytes.starts_with(b"GGUF") {
        return Sniffed::Gguf;
    }
    // Before the short magics: the length that such a file begins with may have their bytes.
    if is_safetensors(bytes) {
        return Sniffed::Safetensors;
    }
    let head = &bytes[..bytes.len().min(4096)];
    let zipped = head.starts_with(b"PK\x03\x04") && contains(head, b"data.pkl");
    if zipped || bytes.starts_with(crate::torch::LEGACY) {
        return Sniffed::Torch;
    }
    let foreign = |what, remedy| Sniffed::Foreign { what, remedy };
    if let Some(&(_, what, remedy)) = MAGICS.iter().find(|(magic, ..)| bytes.starts_with(magic)) {
        return foreign(what, remedy);
    }
    if head.starts_with(b"PK\x03\x04") || head.starts_with(b"PK\x05\x06") {
        return if contains(head, b".npy") {
            foreign("an archive of NumPy arrays (.npz)", CONVERT)
        } else {
            foreign("a zip archive", UNPACK)
        };
    }
    if head.get(4..8) == Some(b"TFL3") {
        return foreign("a TensorFlow Lite model", CONVERT);
    }
    if head.get(257..262) == Some(b"ustar") {
        return foreign("a tar archive", UNPACK);
    }
    if is_onnx(head) {
        return foreign(
            "an ONNX graph: it has operators instead of an architecture",
            "run it with `forward` or `detect`",
        );
    }
    if head.iter().all(|&b| b == 0) {
        return foreign("all zeros at its start: an unfinished download", FETCH);
    }
    sniff_text(head)
}

fn sniff_text(head: &[u8]) -> Sniffed {
    let foreign = |what, remedy| Sniffed::Foreign { what, remedy };
    let text = head.trim_ascii_start();
    let starts =
        |tag: &[u8]| text.get(..tag.len()).is_some_and(|start| start.eq_ignore_ascii_case(tag));
    if starts(b"<!doctype html") || starts(b"<html") || starts(b"<head") {
        return foreign("a page of HTML: the download gave a web page, not the file", FETCH);
    }
    if starts(b"<?xml") {
        return foreign("an XML document: the download gave an error, not the file", FETCH);
    }
    if starts(b"{") || starts(b"[") {
        return foreign("JSON text", "give the model's weights or its directory");
    }
    // The cut at the end of `head` may be inside a character.
    let printable = match std::str::from_utf8(head) {
        Ok(s) => s,
        Err(e) if e.error_len().is_none() => {
            std::str::from_utf8(&head[..e.valid_up_to()]).unwrap_or("")
        }
        Err(_) => "",
    };
    let is_text = |c: char| !c.is_control() || c.is_ascii_whitespace();
    if !printable.is_empty() && printable.chars().all(is_text) {
        return foreign("text", "give a model file");
    }
    foreign("of no known format", "give a GGUF or safetensors file, or fetch the model again")
}

/// A length, then that many bytes of a JSON object.
fn is_safetensors(bytes: &[u8]) -> bool {
    let Some((len, rest)) = bytes.split_first_chunk::<8>() else { return false };
    u64::from_le_bytes(*len) <= crate::safetensors::LONGEST_HEADER && rest.starts_with(b"{")
}

/// A protobuf `ModelProto`: field 1 (`ir_version`) is a small number, then fields 2 to 8, all
/// length-delimited or a varint.
pub(crate) fn is_onnx(bytes: &[u8]) -> bool {
    const NEXT_TAGS: [u8; 7] = [0x12, 0x1a, 0x22, 0x28, 0x32, 0x3a, 0x42];
    matches!(bytes, [0x08, 1..=32, tag, ..] if NEXT_TAGS.contains(tag))
}

fn contains(haystack: &[u8], needle: &[u8]) -> bool {
    haystack.windows(needle.len()).any(|w| w == needle)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn what(bytes: &[u8]) -> &'static str {
        match sniff(bytes) {
            Sniffed::Gguf => "gguf",
            Sniffed::Safetensors => "safetensors",
            Sniffed::Torch => "PyTorch",
            Sniffed::Foreign { what, .. } => what,
        }
    }

    #[test]
    fn content_is_named() {
        assert_eq!(what(b"GGUF\x03\0\0\0"), "gguf");
        assert_eq!(what(b"\x02\0\0\0\0\0\0\0{}"), "safetensors");
        assert_eq!(what(b"\x80\x02\0\0\0\0\0\0{"), "safetensors");
        assert_eq!(what(b"PK\x03\x04....archive/data.pkl"), "PyTorch");
        assert!(what(b"PK\x03\x04....x.npy").contains("NumPy"));
        assert_eq!(what(b"PK\x03\x04....readme"), "a zip archive");
        assert!(what(b"\x80\x02\x8a\x0al\xfc").contains("pickle"));
        assert!(what(b"\x08\x08\x12\x07pytorch").contains("ONNX"));
        assert!(what(b" \n<!DOCTYPE HTML><p>").contains("HTML"));
        assert!(what(b"version https://git-lfs.github.com/spec/v1\noid").contains("LFS"));
        assert!(what(b"{\"a\": 1}").contains("JSON"));
        assert_eq!(what("Entry not found, é".as_bytes()), "text");
        assert!(what(&[0; 64]).contains("zeros"));
        assert!(what(b"\x91\x00\xff\xfe").contains("no known format"));
    }
}
