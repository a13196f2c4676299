//! One NumPy array: `\x93NUMPY`, a version, the length of a header, the header (a Python dict of
//! three entries), the elements. Published in NumPy's `numpy.lib.format`.
//!
//! The header is read by a scanner for just that dict. The crates that read Python literals in
//! general need a C compiler for their stack guard, and this header needs no recursion.

use std::io::{self, Read};

use cyb_tensor::{AlignedBytes, DType};

use crate::text::Excerpt;

const MAGIC: &[u8; 6] = b"\x93NUMPY";
/// NumPy itself refuses longer headers.
const LONGEST_HEADER: usize = 10_000;
/// NumPy arrays have at most this many axes.
const MAX_DIMS: usize = 64;

/// What is wrong with an array.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NpyError {
    #[error("not a .npy array; write it with numpy.save")]
    Magic,
    #[error(".npy version {0} is not supported (1 to 3 are); write it with a current NumPy")]
    Version(u8),
    #[error("the header is {0} bytes long; the file is damaged")]
    LongHeader(usize),
    #[error("the header {} is not that of an array; the file is damaged", Excerpt(.0))]
    Header(String),
    #[error("arrays of {} are not supported; convert to bool, int, uint or float", Excerpt(.0))]
    Type(String),
    #[error("its shape needs {want} bytes, but it has {got}; the file is damaged")]
    Length { want: u64, got: u64 },
}

/// Why a header could not be read.
pub(crate) enum HeaderError {
    Io(io::Error),
    Npy(NpyError),
}

impl From<io::Error> for HeaderError {
    fn from(e: io::Error) -> HeaderError {
        HeaderError::Io(e)
    }
}

impl From<NpyError> for HeaderError {
    fn from(e: NpyError) -> HeaderError {
        HeaderError::Npy(e)
    }
}

/// A parsed header.
#[derive(Debug, PartialEq)]
pub(crate) struct Header {
    pub(crate) dtype: DType,
    pub(crate) shape: Vec<usize>,
    fortran: bool,
    big_endian: bool,
    /// Bytes before the elements.
    pub(crate) len: u64,
}

pub(crate) fn read_header(from: &mut impl Read) -> Result<Header, HeaderError> {
    let mut start = [0; 8];
    from.read_exact(&mut start)?;
    if !start.starts_with(MAGIC) {
        return Err(NpyError::Magic.into());
    }
    let (len, prefix) = match start[6] {
        1 => {
            let mut len = [0; 2];
            from.read_exact(&mut len)?;
            (u16::from_le_bytes(len) as usize, 10)
        }
        2 | 3 => {
            let mut len = [0; 4];
            from.read_exact(&mut len)?;
            (u32::from_le_bytes(len) as usize, 12)
        }
        v => return Err(NpyError::Version(v).into()),
    };
    if len > LONGEST_HEADER {
        return Err(NpyError::LongHeader(len).into());
    }
    let mut text = vec![0; len];
    from.read_exact(&mut text)?;
    let text = String::from_utf8_lossy(&text);
    let Dict { descr, fortran, shape } =
        Dict::parse(&text).ok_or_else(|| NpyError::Header(text.trim().to_owned()))?;
    let (dtype, big_endian) = dtype_of(&descr).ok_or(NpyError::Type(descr))?;
    Ok(Header { dtype, shape, fortran, big_endian, len: (prefix + len) as u64 })
}

impl Header {
    /// Turns elements as they are in the file into little-endian ones in row-major order.
    pub(crate) fn to_native(&self, bytes: &mut AlignedBytes) {
        let width = self.dtype.layout().bytes;
        if self.dtype == DType::Bool {
            // NumPy takes every byte but zero as true.
            bytes.as_mut_slice().iter_mut().for_each(|b| *b = u8::from(*b != 0));
        }
        if self.big_endian {
            bytes.as_mut_slice().chunks_exact_mut(width).for_each(<[u8]>::reverse);
        }
        if self.fortran && self.shape.len() > 1 && !bytes.as_slice().is_empty() {
            *bytes = row_major(bytes.as_slice(), &self.shape, width);
        }
    }
}

/// Column-major elements in row-major order.
fn row_major(columns: &[u8], shape: &[usize], width: usize) -> AlignedBytes {
    let mut out = AlignedBytes::zeroed(columns.len());
    // The step in `columns` of each axis: the first axis is the innermost.
    let strides: Vec<usize> =
        shape.iter().scan(1, |step, &d| Some(std::mem::replace(step, *step * d))).collect();
    let mut index = vec![0; shape.len()];
    let mut from = 0;
    for element in out.as_mut_slice().chunks_exact_mut(width) {
        element.copy_from_slice(&columns[from * width..][..width]);
        for axis in (0..shape.len()).rev() {
            index[axis] += 1;
            from += strides[axis];
            if index[axis] < shape[axis] {
                break;
            }
            from -= strides[axis] * shape[axis];
            index[axis] = 0;
        }
    }
    out
}

/// NumPy's little-endian name of a type.
pub(crate) fn descr(dtype: DType) -> Option<&'static str> {
    Some(match dtype {
        DType::Bool => "|b1",
        DType::U8 => "|u1",
        DType::I8 => "|i1",
        DType::U16 => "<u2",
        DType::I16 => "<i2",
        DType::U32 => "<u4",
        DType::I32 => "<i4",
        DType::U64 => "<u8",
        DType::I64 => "<i8",
        DType::F16 => "<f2",
        DType::F32 => "<f4",
        DType::F64 => "<f8",
        _ => return None,
    })
}

/// The type of a NumPy name, and whether its elements are big-endian.
fn dtype_of(name: &str) -> Option<(DType, bool)> {
    let order = name.chars().next()?;
    let plain = name.strip_prefix(['<', '>', '|', '='])?;
    let dtype = DType::ALL.iter().copied().find(|&d| descr(d).is_some_and(|n| &n[1..] == plain))?;
    Some((dtype, order == '>'))
}

/// The header as NumPy writes it: version 1, padded so that the elements are 64-byte aligned.
pub(crate) fn header(dtype: DType, shape: &[usize]) -> Option<Vec<u8>> {
    let descr = descr(dtype)?;
    let dims: Vec<String> = shape.iter().map(usize::to_string).collect();
    let comma = if shape.len() == 1 { "," } else { "" };
    let shape = format!("({}{comma})", dims.join(", "));
    let mut text = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}");
    let total = (10 + text.len() + 1).next_multiple_of(64);
    while 10 + text.len() + 1 < total {
        text.push(' ');
    }
    text.push('\n');
    let len = u16::try_from(text.len()).ok()?;
    Some([MAGIC, &[1, 0][..], &len.to_le_bytes(), text.as_bytes()].concat())
}

/// The entries of a header.
struct Dict {
    descr: String,
    fortran: bool,
    shape: Vec<usize>,
}

impl Dict {
    /// Reads `{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }`: the three keys, once
    /// each, in any order. `None` for anything else.
    fn parse(text: &str) -> Option<Dict> {
        let mut s = Scanner(text);
        let (mut descr, mut fortran, mut shape) = (None, None, None);
        s.expect('{')?;
        while !s.eat('}') {
            let key = s.quoted()?;
            s.expect(':')?;
            let fresh = match key {
                "descr" => descr.replace(s.descr()?).is_none(),
                "fortran_order" => fortran.replace(s.boolean()?).is_none(),
                "shape" => shape.replace(s.shape()?).is_none(),
                _ => false,
            };
            if !fresh {
                return None;
            }
            if !s.eat(',') {
                s.expect('}')?;
                break;
            }
        }
        s.0.trim().is_empty().then_some(())?;
        Some(Dict { descr: descr?, fortran: fortran?, shape: shape? })
    }
}

struct Scanner<'a>(&'a str);

impl<'a> Scanner<'a> {
    fn eat(&mut self, c: char) -> bool {
        let rest = self.0.trim_start().strip_prefix(c);
        self.0 = rest.unwrap_or(self.0);
        rest.is_some()
    }

    fn expect(&mut self, c: char) -> Option<()> {
        self.eat(c).then_some(())
    }

    fn quoted(&mut self) -> Option<&'a str> {
        let rest = self.0.trim_start();
        let quote = rest.chars().next().filter(|c| matches!(c, '\'' | '"'))?;
        let (text, after) = rest[1..].split_once(quote)?;
        self.0 = after;
        Some(text)
    }

    /// The type: a string, or a list that describes a structured array, which is kept to be named.
    fn descr(&mut self) -> Option<String> {
        if !self.0.trim_start().starts_with('[') {
            return self.quoted().map(str::to_owned);
        }
        let (list, after) = self.0.split_at(self.0.rfind(']')? + 1);
        self.0 = after;
        Some(list.trim().to_owned())
    }

    fn boolean(&mut self) -> Option<bool> {
        let text = self.0.trim_start();
        let (value, rest) = match text.strip_prefix("True") {
            Some(rest) => (true, rest),
            None => (false, text.strip_prefix("False")?),
        };
        self.0 = rest;
        Some(value)
    }

    fn shape(&mut self) -> Option<Vec<usize>> {
        self.expect('(')?;
        let mut dims = Vec::new();
        while !self.eat(')') {
            let text = self.0.trim_start();
            let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
            dims.push(text[..digits].parse().ok()?);
            // Python 2 wrote `3L`.
            self.0 = text[digits..].strip_prefix('L').unwrap_or(&text[digits..]);
            if !self.eat(',') {
                self.expect(')')?;
                break;
            }
        }
        (dims.len() <= MAX_DIMS).then_some(dims)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Option<(String, bool, Vec<usize>)> {
        Dict::parse(text).map(|d| (d.descr, d.fortran, d.shape))
    }

    #[test]
    fn headers_are_read_strictly() {
        let want = Some(("<f4".to_owned(), false, vec![2, 3]));
        assert_eq!(parse("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }  \n"), want);
        assert_eq!(parse("{\"shape\":(2,3,),'fortran_order':False,'descr':'<f4'}"), want);
        let scalar = parse("{'descr': '|b1', 'fortran_order': True, 'shape': (), }");
        assert_eq!(scalar, Some(("|b1".to_owned(), true, vec![])));
        let old = parse("{'descr': '<f4', 'fortran_order': False, 'shape': (3L,), }");
        assert_eq!(old.unwrap().2, [3]);
        for bad in [
            "",
            "{",
            "{}",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (2, -3), }",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (2 3), }",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,), }",
            "{'descr': '<f4', 'fortran_order': 0, 'shape': (2,), }",
            "{'descr': '<f4', 'descr': '<f8', 'fortran_order': False, 'shape': (2,), }",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), 'x': 1}",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (2,)} x",
            "{'descr': '<f4 , 'fortran_order': False, 'shape': (2,)}",
        ] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn columns_become_rows() {
        // Axes of 2, 3 and 2; the element at [i, j, k] is 100 i + 10 j + k.
        let element = |i: usize, j: usize, k: usize| (100 * i + 10 * j + k) as u8;
        let mut columns = Vec::new();
        let mut rows = Vec::new();
        for a in 0..12 {
            columns.push(element(a % 2, a / 2 % 3, a / 6));
            rows.push(element(a / 6, a / 2 % 3, a % 2));
        }
        assert_eq!(row_major(&columns, &[2, 3, 2], 1).as_slice(), rows);
    }
}
