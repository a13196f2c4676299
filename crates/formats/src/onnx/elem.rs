//! Element types of ONNX tensors and how they are stored here.
//!
//! Types without a storage dtype of their own keep their numbers in a wider one: integers of 2 and
//! 4 bits as one byte each, narrow floats other than `f8e4m3` and `f8e5m2` as `F32`.

use cyb_tensor::DType;

macro_rules! elems {
    ($($variant:ident $id:literal $name:literal $storage:expr;)*) => {
        /// An element type, with its number in `TensorProto.DataType`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Elem { $($variant = $id,)* }

        impl Elem {
            pub const ALL: &[Elem] = &[$(Elem::$variant,)*];

            /// The type with this number.
            pub fn from_id(id: i64) -> Option<Elem> {
                match id { $($id => Some(Elem::$variant),)* _ => None }
            }

            /// The name in the ONNX documentation, in lower case.
            pub const fn name(self) -> &'static str {
                match self { $(Elem::$variant => $name,)* }
            }

            /// The dtype that holds its numbers; `None` for strings and complex numbers.
            pub const fn storage(self) -> Option<DType> {
                match self { $(Elem::$variant => $storage,)* }
            }
        }
    };
}

elems! {
    F32        1  "float"          Some(DType::F32);
    U8         2  "uint8"          Some(DType::U8);
    I8         3  "int8"           Some(DType::I8);
    U16        4  "uint16"         Some(DType::U16);
    I16        5  "int16"          Some(DType::I16);
    I32        6  "int32"          Some(DType::I32);
    I64        7  "int64"          Some(DType::I64);
    Str        8  "string"         None;
    Bool       9  "bool"           Some(DType::Bool);
    F16        10 "float16"        Some(DType::F16);
    F64        11 "double"         Some(DType::F64);
    U32        12 "uint32"         Some(DType::U32);
    U64        13 "uint64"         Some(DType::U64);
    C64        14 "complex64"      None;
    C128       15 "complex128"     None;
    BF16       16 "bfloat16"       Some(DType::BF16);
    F8E4M3     17 "float8e4m3fn"   Some(DType::F8E4M3);
    F8E4M3Fnuz 18 "float8e4m3fnuz" Some(DType::F32);
    F8E5M2     19 "float8e5m2"     Some(DType::F8E5M2);
    F8E5M2Fnuz 20 "float8e5m2fnuz" Some(DType::F32);
    U4         21 "uint4"          Some(DType::U8);
    I4         22 "int4"           Some(DType::I8);
    F4E2M1     23 "float4e2m1"     Some(DType::F32);
    F8E8M0     24 "float8e8m0"     Some(DType::F32);
    U2         25 "uint2"          Some(DType::U8);
    I2         26 "int2"           Some(DType::I8);
    F6E2M3     27 "float6e2m3"     Some(DType::F32);
    F6E3M2     28 "float6e3m2"     Some(DType::F32);
}

/// A float of at most 8 bits that is stored as `F32`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NarrowFloat {
    pub exponent_bits: u32,
    pub mantissa_bits: u32,
    pub bias: i32,
    /// Negative zero is the only NaN, and there are no infinities (the FNUZ types).
    pub fnuz: bool,
}

impl Elem {
    /// The type whose numbers are just those of `dtype`.
    pub fn of(dtype: DType) -> Option<Elem> {
        Elem::ALL.iter().copied().find(|e| e.storage() == Some(dtype) && e.is_plain())
    }

    /// Whether every number of the storage dtype is one of the type's.
    pub fn is_plain(self) -> bool {
        self.bits() == self.storage().map(|d| d.layout().bytes as u32 * 8)
    }

    /// Bits of an element in a file; `None` for strings.
    pub fn bits(self) -> Option<u32> {
        Some(match self {
            Elem::U2 | Elem::I2 => 2,
            Elem::U4 | Elem::I4 | Elem::F4E2M1 => 4,
            // The 6-bit floats take a byte each.
            Elem::F6E2M3 | Elem::F6E3M2 => 8,
            Elem::U8 | Elem::I8 | Elem::Bool => 8,
            Elem::F8E4M3 | Elem::F8E4M3Fnuz | Elem::F8E5M2 | Elem::F8E5M2Fnuz | Elem::F8E8M0 => 8,
            Elem::U16 | Elem::I16 | Elem::F16 | Elem::BF16 => 16,
            Elem::F32 | Elem::I32 | Elem::U32 => 32,
            Elem::F64 | Elem::I64 | Elem::U64 | Elem::C64 => 64,
            Elem::C128 => 128,
            Elem::Str => return None,
        })
    }

    /// The smallest and largest number of an integer type.
    pub fn int_range(self) -> Option<(i128, i128)> {
        let signed = |bits: u32| (-(1i128 << (bits - 1)), (1i128 << (bits - 1)) - 1);
        let unsigned = |bits: u32| (0, (1i128 << bits) - 1);
        let bits = self.bits()?;
        match self {
            Elem::I2 | Elem::I4 | Elem::I8 | Elem::I16 | Elem::I32 | Elem::I64 => {
                Some(signed(bits))
            }
            Elem::U2 | Elem::U4 | Elem::U8 | Elem::U16 | Elem::U32 | Elem::U64 => {
                Some(unsigned(bits))
            }
            _ => None,
        }
    }

    /// The format, for floats that are stored as `F32`.
    pub fn narrow_float(self) -> Option<NarrowFloat> {
        let format = |exponent_bits, mantissa_bits, bias, fnuz| {
            Some(NarrowFloat { exponent_bits, mantissa_bits, bias, fnuz })
        };
        match self {
            Elem::F8E4M3Fnuz => format(4, 3, 8, true),
            Elem::F8E5M2Fnuz => format(5, 2, 16, true),
            Elem::F4E2M1 => format(2, 1, 1, false),
            Elem::F6E2M3 => format(2, 3, 1, false),
            Elem::F6E3M2 => format(3, 2, 3, false),
            _ => None,
        }
    }

    /// The number with these bits, for floats that are stored as `F32`.
    pub fn decode_narrow(self, bits: u8) -> Option<f32> {
        if self == Elem::F8E8M0 {
            let exponent = i32::from(bits) - 127;
            return Some(if bits == 0xff { f32::NAN } else { 2f64.powi(exponent) as f32 });
        }
        let NarrowFloat { exponent_bits, mantissa_bits, bias, fnuz } = self.narrow_float()?;
        let sign = u32::from(bits) >> (exponent_bits + mantissa_bits) & 1;
        let exponent = (u32::from(bits) >> mantissa_bits) & ((1 << exponent_bits) - 1);
        let mantissa = u32::from(bits) & ((1 << mantissa_bits) - 1);
        if fnuz && sign == 1 && exponent == 0 && mantissa == 0 {
            return Some(f32::NAN);
        }
        let (significand, exponent) = match exponent {
            0 => (mantissa, 1),
            e => (mantissa + (1 << mantissa_bits), e),
        };
        let scale = 2f64.powi(exponent as i32 - bias - mantissa_bits as i32);
        let magnitude = f64::from(significand) * scale;
        Some(if sign == 1 { -magnitude } else { magnitude } as f32)
    }
}

impl std::fmt::Display for Elem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn narrow_floats_decode() {
        let all = |e: Elem, n: u8| (0..n).filter_map(move |b| e.decode_narrow(b));
        let e2m1: Vec<f32> = all(Elem::F4E2M1, 8).collect();
        assert_eq!(e2m1, [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]);
        assert_eq!(Elem::F8E4M3Fnuz.decode_narrow(0x7f), Some(240.0));
        assert_eq!(Elem::F8E5M2Fnuz.decode_narrow(0x7f), Some(57344.0));
        assert!(Elem::F8E5M2Fnuz.decode_narrow(0x80).is_some_and(f32::is_nan));
        assert_eq!(Elem::F8E8M0.decode_narrow(127), Some(1.0));
        assert_eq!(Elem::F6E2M3.decode_narrow(0x1f), Some(7.5));
        assert_eq!(Elem::F6E3M2.decode_narrow(0x1f), Some(28.0));
        assert_eq!(Elem::F32.decode_narrow(1), None);
    }

    #[test]
    fn plain_types_are_their_storage() {
        assert_eq!(Elem::of(DType::U8), Some(Elem::U8));
        assert_eq!(Elem::of(DType::F32), Some(Elem::F32));
        assert_eq!(Elem::of(DType::Q4_0), None);
        assert!(!Elem::I4.is_plain());
    }
}
