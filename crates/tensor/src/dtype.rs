//! Element types. A dtype is a storage format: how many elements make a block and how many bytes a
//! block takes. For plain types a block is one element.

use std::fmt;
use std::str::FromStr;

/// What kind of numbers a dtype stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    Bool,
    Int,
    Float,
    /// Blocks of codes with scales; decoded to `F32` when read.
    Quantized,
}

/// How a dtype lies in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Elements in a block, along the innermost axis.
    pub block: usize,
    /// Bytes of a block.
    pub bytes: usize,
}

/// One row per dtype: variant, canonical name, class, elements per block, bytes per block, the GGML
/// type number where GGML has the type.
macro_rules! dtypes {
    ($($variant:ident $name:literal $class:ident $block:literal $bytes:literal $ggml:expr;)*) => {
        /// An element type or quantised block format.
        #[allow(non_camel_case_types, reason = "quantised formats keep their published names")]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum DType { $($variant,)* }

        impl DType {
            pub const ALL: &[DType] = &[$(DType::$variant,)*];

            /// The canonical lower-case name, as printed and parsed.
            pub const fn name(self) -> &'static str {
                match self { $(DType::$variant => $name,)* }
            }

            pub const fn class(self) -> Class {
                match self { $(DType::$variant => Class::$class,)* }
            }

            pub const fn layout(self) -> Layout {
                match self { $(DType::$variant => Layout { block: $block, bytes: $bytes },)* }
            }

            /// The type's number in GGUF files.
            pub const fn ggml_id(self) -> Option<u32> {
                match self { $(DType::$variant => $ggml,)* }
            }
        }
    };
}

dtypes! {
    Bool    "bool"    Bool      1   1   None;
    U8      "u8"      Int       1   1   None;
    I8      "i8"      Int       1   1   Some(24);
    U16     "u16"     Int       1   2   None;
    I16     "i16"     Int       1   2   Some(25);
    U32     "u32"     Int       1   4   None;
    I32     "i32"     Int       1   4   Some(26);
    U64     "u64"     Int       1   8   None;
    I64     "i64"     Int       1   8   Some(27);
    F8E4M3  "f8e4m3"  Float     1   1   None;
    F8E5M2  "f8e5m2"  Float     1   1   None;
    F16     "f16"     Float     1   2   Some(1);
    BF16    "bf16"    Float     1   2   Some(30);
    F32     "f32"     Float     1   4   Some(0);
    F64     "f64"     Float     1   8   Some(28);
    Q4_0    "q4_0"    Quantized 32  18  Some(2);
    Q4_1    "q4_1"    Quantized 32  20  Some(3);
    Q5_0    "q5_0"    Quantized 32  22  Some(6);
    Q5_1    "q5_1"    Quantized 32  24  Some(7);
    Q8_0    "q8_0"    Quantized 32  34  Some(8);
    Q8_1    "q8_1"    Quantized 32  36  Some(9);
    Q2_K    "q2_k"    Quantized 256 84  Some(10);
    Q3_K    "q3_k"    Quantized 256 110 Some(11);
    Q4_K    "q4_k"    Quantized 256 144 Some(12);
    Q5_K    "q5_k"    Quantized 256 176 Some(13);
    Q6_K    "q6_k"    Quantized 256 210 Some(14);
    Q8_K    "q8_k"    Quantized 256 292 Some(15);
    IQ2_XXS "iq2_xxs" Quantized 256 66  Some(16);
    IQ2_XS  "iq2_xs"  Quantized 256 74  Some(17);
    IQ3_XXS "iq3_xxs" Quantized 256 98  Some(18);
    IQ1_S   "iq1_s"   Quantized 256 50  Some(19);
    IQ4_NL  "iq4_nl"  Quantized 32  18  Some(20);
    IQ3_S   "iq3_s"   Quantized 256 110 Some(21);
    IQ2_S   "iq2_s"   Quantized 256 82  Some(22);
    IQ4_XS  "iq4_xs"  Quantized 256 136 Some(23);
    IQ1_M   "iq1_m"   Quantized 256 56  Some(29);
    TQ1_0   "tq1_0"   Quantized 256 54  Some(34);
    TQ2_0   "tq2_0"   Quantized 256 66  Some(35);
    MXFP4   "mxfp4"   Quantized 32  17  Some(39);
    NVFP4   "nvfp4"   Quantized 64  36  Some(40);
    Q1_0    "q1_0"    Quantized 128 18  Some(41);
    Q2_0    "q2_0"    Quantized 64  18  Some(42);
}

impl DType {
    /// The dtype with this GGUF type number.
    pub fn from_ggml_id(id: u32) -> Option<DType> {
        DType::ALL.iter().copied().find(|d| d.ggml_id() == Some(id))
    }

    pub const fn is_quantized(self) -> bool {
        matches!(self.class(), Class::Quantized)
    }

    /// Bytes of `elems` contiguous elements; `None` when they are not whole blocks or overflow.
    pub fn bytes_for(self, elems: usize) -> Option<usize> {
        let Layout { block, bytes } = self.layout();
        if !elems.is_multiple_of(block) {
            return None;
        }
        (elems / block).checked_mul(bytes)
    }

    /// The dtype values have once read: quantised and narrow floats compute in `F32`.
    pub const fn decoded(self) -> DType {
        match self.class() {
            Class::Quantized => DType::F32,
            Class::Bool | Class::Int | Class::Float => self,
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The name is not that of a dtype.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown dtype '{0}'")]
pub struct UnknownDType(pub String);

impl FromStr for DType {
    type Err = UnknownDType;

    fn from_str(s: &str) -> Result<DType, UnknownDType> {
        let lower = s.to_ascii_lowercase();
        DType::ALL.iter().copied().find(|d| d.name() == lower).ok_or(UnknownDType(s.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for &d in DType::ALL {
            assert_eq!(d.name().parse::<DType>(), Ok(d));
            if let Some(id) = d.ggml_id() {
                assert_eq!(DType::from_ggml_id(id), Some(d));
            }
        }
        assert!("q4".parse::<DType>().is_err());
    }

    #[test]
    fn sizes_are_checked() {
        assert_eq!(DType::Q4_K.bytes_for(512), Some(288));
        assert_eq!(DType::Q4_K.bytes_for(100), None);
        assert_eq!(DType::F64.bytes_for(usize::MAX), None);
    }
}
