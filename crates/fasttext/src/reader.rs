//! Little-endian numbers from bytes, each read checked.

use crate::Problem;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    /// What is being read, for errors.
    what: &'static str,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { bytes, at: 0, what: "the header" }
    }

    /// Names the part of the file that follows.
    pub(crate) fn part(&mut self, what: &'static str) {
        self.what = what;
    }

    pub(crate) fn position(&self) -> usize {
        self.at
    }

    pub(crate) fn rest(&self) -> usize {
        self.bytes.len() - self.at
    }

    pub(crate) fn take(&mut self, n: usize) -> Result<&'a [u8], Problem> {
        let part = self.bytes[self.at..].get(..n).ok_or(Problem::Cut(self.what))?;
        self.at += n;
        Ok(part)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Problem> {
        let part = self.bytes[self.at..].first_chunk::<N>().ok_or(Problem::Cut(self.what))?;
        self.at += N;
        Ok(*part)
    }

    pub(crate) fn i32(&mut self) -> Result<i32, Problem> {
        Ok(i32::from_le_bytes(self.array()?))
    }

    pub(crate) fn i64(&mut self) -> Result<i64, Problem> {
        Ok(i64::from_le_bytes(self.array()?))
    }

    /// A number that must be from `least` to `most`.
    pub(crate) fn size(
        &mut self,
        what: &'static str,
        value: i64,
        most: usize,
    ) -> Result<usize, Problem> {
        let size = usize::try_from(value).ok().filter(|&n| n <= most);
        size.ok_or(Problem::Value { what, value, want: "which the file has no room for" })
    }

    pub(crate) fn flag(&mut self, what: &'static str) -> Result<bool, Problem> {
        match self.array::<1>()? {
            [0] => Ok(false),
            [1] => Ok(true),
            [other] => Err(Problem::Value { what, value: other.into(), want: "not 0 or 1" }),
        }
    }

    /// Bytes up to a zero, which is taken and left out.
    pub(crate) fn string(&mut self) -> Result<&'a [u8], Problem> {
        let rest = &self.bytes[self.at..];
        let end = rest.iter().position(|&b| b == 0).ok_or(Problem::Cut(self.what))?;
        self.at += end + 1;
        Ok(&rest[..end])
    }
}
