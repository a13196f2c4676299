//! How tiles of quantised weights are stored and unpacked, one small type a format.
//!
//! A tile is 16 rows of the weights; lane `r` of every vector is row `r`. Codes lie in vectors of
//! 64 bytes that hold 4 consecutive `k` of each row (a *step*), so a 32-block is 8 steps. Narrow
//! codes share bytes the way the file's own format does (element `k` with element `k + 16`, `k +
//! 32` or `k + 64`), so that re-tiling moves 4-byte pieces. Further bits of codes are gathered into
//! steps of their own, one or two a block. A tile is a row of *spans* of a few 32-blocks, and what
//! is in a span lies in the order in which it is needed first: a tile is one stream from its first
//! byte to its last, which the CPU's own prefetching keeps up with.
//!
//! The value of a weight is `scale * (code - OFFSET) + min`.

use cyb_simd::Isa;

/// Unpacks the spans of one format. Blocks are 32 values, counted inside the span; `j` is the
/// block's index modulo [`UNROLL`](Codec::UNROLL) (a literal in the callers, so that shifts become
/// immediates).
pub(super) trait Codec: Copy {
    /// Values that share a scale: 16 or 32.
    const GROUP: usize;
    /// The largest code; codes of a `SIGNED` format are any `i8`.
    const MAX_CODE: u32;
    const SIGNED: bool = false;
    const OFFSET: i32;
    const MINS: bool = false;
    /// 32-blocks of a span, which share what `head` loads; the last one of a tile may have fewer.
    const SPAN: usize;
    /// Blocks whose codes share bytes: 1, 2 or 4.
    const UNROLL: usize = 1;
    /// Whether codes come from two planes, so that unpacking takes longer than a field of one load.
    const SPLIT: bool = false;
    /// Whether the CPU's own prefetching keeps up with one row of activations; asking for all of a
    /// tile besides then takes up to half of the speed. Measured: it does not where four blocks share
    /// bytes, so that the first of them takes most of the lines (`Q6_K` spreads them), nor where a
    /// block is a line or two.
    const EVEN: bool = Self::UNROLL < 4;
    /// Whether steps lie in pairs where rows are interleaved and the instruction set wants them so.
    const PAIRED: bool = false;
    /// Bytes of a span; 0 for weights that are in the cache already.
    const SPAN_BYTES: usize = 0;
    type Head<S: Isa>: Copy;

    /// The span `i` further on.
    fn span(self, i: usize) -> Self;

    /// The first byte of the span.
    fn start(self) -> *const u8 {
        std::ptr::null()
    }

    /// # Safety
    /// All functions: the span is inside the tile, and the block inside the span.
    unsafe fn head<S: Isa>(self, s: S) -> Self::Head<S>;
    /// Step `g` of 8 of a block.
    unsafe fn codes<S: Isa>(self, s: S, block: usize, j: usize, g: usize) -> S::B;
    /// Scales of the `half`th group of a block.
    unsafe fn scale<S: Isa>(self, s: S, head: Self::Head<S>, block: usize, half: usize) -> S::F;
    /// Minima of the `half`th group of a block.
    unsafe fn min<S: Isa>(self, s: S, head: Self::Head<S>, _block: usize, _half: usize) -> S::F {
        let _ = head;
        s.splat(0.0)
    }
}

/// Bytes of one 64-byte step.
pub(super) const STEP: usize = 64;
/// Rows of a tile.
pub(super) const ROWS: usize = 16;
/// 16 half-precision floats.
const HALVES: usize = 2 * ROWS;

#[inline(always)]
unsafe fn halves<S: Isa>(s: S, p: *const u8) -> S::F {
    // SAFETY: the caller's contract: 16 half-precision floats are readable.
    unsafe { s.load_f16(p.cast()) }
}

/// 16 unsigned bytes as floats.
#[inline(always)]
unsafe fn bytes<S: Isa>(s: S, p: *const u8) -> S::F {
    // SAFETY: the caller's contract: 16 bytes are readable.
    s.to_float(unsafe { s.load_u8(p) })
}

#[inline(always)]
unsafe fn signed_bytes<S: Isa>(s: S, p: *const u8) -> S::F {
    // SAFETY: the caller's contract: 16 bytes are readable.
    s.to_float(unsafe { s.load_i8(p.cast()) })
}

/// The bits `from..from + width` of every byte, at `to`.
#[inline(always)]
fn field<S: Isa>(s: S, v: S::B, from: usize, width: usize, to: usize) -> S::B {
    let mask = s.splat_b((((1u32 << width) - 1) << to) as u8);
    let moved = if from > to {
        s.shr_b(v, (from - to) as u32)
    } else if from < to {
        s.shl_b(v, (to - from) as u32)
    } else {
        v
    };
    s.and_b(moved, mask)
}

/// Step `g` of a block whose 16 bytes a row hold element `k` low and `k + 16` high.
#[inline(always)]
unsafe fn nibbles_16<S: Isa>(s: S, plane: *const u8, block: usize, g: usize) -> S::B {
    // SAFETY: the caller's contract: the block is inside the plane.
    let v = unsafe { s.load_b(plane.add((block * 4 + g % 4) * STEP)) };
    field(s, v, g / 4 * 4, 4, 0)
}

/// Step `g` of a block whose 32 bytes a row hold block `2i` low and `2i + 1` high.
#[inline(always)]
unsafe fn nibbles_32<S: Isa>(s: S, plane: *const u8, block: usize, j: usize, g: usize) -> S::B {
    // SAFETY: the caller's contract: the block is inside the plane.
    let v = unsafe { s.load_b(plane.add(((block - j % 2) * 4 + g) * STEP)) };
    field(s, v, j % 2 * 4, 4, 0)
}

/// Step `g` of a block of 2-bit codes: 32 bytes a row hold four blocks.
#[inline(always)]
unsafe fn crumbs<S: Isa>(
    s: S,
    plane: *const u8,
    block: usize,
    j: usize,
    g: usize,
    to: usize,
) -> S::B {
    // SAFETY: the caller's contract: the block is inside the plane.
    let v = unsafe { s.load_b(plane.add(((block - j % 4) * 2 + g) * STEP)) };
    field(s, v, j % 4 * 2, 2, to)
}

/// Step `g` of a block of 2-bit codes with a bit on top: for four blocks twelve steps, the bits of the
/// first, the codes of all, the bits of the others.
#[inline(always)]
unsafe fn crumbs_and_bits<S: Isa>(
    s: S,
    plane: *const u8,
    block: usize,
    j: usize,
    g: usize,
) -> S::B {
    // SAFETY: the caller's contract: the block is inside the plane.
    unsafe {
        let plane = plane.add((block - j % 4) * 3 * STEP);
        let bits = s.load_b(plane.add(BITS_OF_Q3[j % 4] * STEP));
        s.or_b(crumbs(s, plane.add(STEP), j % 4, j, g, 0), field(s, bits, g, 1, 2))
    }
}

/// Four bits of each of 16 bytes as floats, the low or the high ones.
#[inline(always)]
unsafe fn half_bytes<S: Isa>(s: S, p: *const u8, high: bool) -> S::F {
    // SAFETY: the caller's contract: 16 bytes are readable.
    let both = unsafe { s.load_u8(p) };
    s.to_float(if high { s.sar_i(both, 4) } else { s.and_i(both, s.splat_i(15)) })
}

/// Half of 16 E4M3 floats without a sign.
#[inline(always)]
unsafe fn half_e4m3<S: Isa>(s: S, p: *const u8) -> S::F {
    // SAFETY: the caller's contract: 16 bytes are readable.
    let bits = s.shl_i(unsafe { s.load_u8(p) }, 20);
    let v = s.float_bits(s.add_i(bits, s.splat_i((127 - 8) << 23)));
    // Without an exponent there is no one before the point: `1 + m/8` counts as twice `m/16`.
    let smallest = s.splat(1.0 / 128.0);
    s.select_gt(smallest, v, s.sub(s.add(v, v), smallest), v)
}

/// Where the planes of a span lie: (bytes a 32-block, for each plane), in order.
macro_rules! planes {
    ($name:ident, span $span:literal { $($plane:ident: $bytes:expr),+ }) => {
        #[derive(Clone, Copy)]
        pub(super) struct $name { $($plane: *const u8),+ }

        impl $name {
            const SPAN: usize = $span;
            const SPAN_BYTES: usize = (0 $(+ $bytes * $span / 8)+).next_multiple_of(STEP);

            pub(super) const LAYOUT: Layout = Layout {
                span: $span,
                bytes: Self::SPAN_BYTES,
                planes: &{
                    let mut at = 0;
                    [$({ let start = at; at += $bytes * $span / 8; let _ = at; start }),+]
                },
            };

            /// The first span of a tile.
            ///
            /// # Safety
            /// `tile` is valid for reading [`Layout::tile_bytes`].
            #[inline(always)]
            #[allow(unused_assignments, reason = "the last plane's end")]
            pub(super) unsafe fn at(tile: *const u8) -> $name {
                let mut at = 0;
                $(
                    // SAFETY: planes follow one another inside the span.
                    let $plane = unsafe { tile.add(at) };
                    at += $bytes * $span / 8;
                )+
                $name { $($plane),+ }
            }

            const fn first(self) -> *const u8 {
                let first = [$(self.$plane),+];
                first[0]
            }
        }
    };
}

/// How tiles of a format are laid out.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    /// 32-blocks of a span.
    pub(super) span: usize,
    /// Bytes of a span.
    pub(super) bytes: usize,
    /// Byte offsets of the planes in a span.
    pub(super) planes: &'static [usize],
}

impl Layout {
    /// Bytes of a tile of `blocks` 32-blocks.
    pub(super) fn tile_bytes(&self, blocks: usize) -> usize {
        blocks.div_ceil(self.span) * self.bytes
    }
}

// Bytes are for eight 32-blocks, so that what is shared by a superblock counts whole.
planes!(Q4_0, span 2 { scales: 8 * HALVES, codes: 8 * 4 * STEP });
planes!(Q4_1, span 2 { scales: 8 * HALVES, mins: 8 * HALVES, codes: 8 * 4 * STEP });
planes!(Q5_0, span 2 { scales: 8 * HALVES, high: 8 * STEP, codes: 8 * 4 * STEP });
planes!(Q5_1, span 2 { scales: 8 * HALVES, mins: 8 * HALVES, high: 8 * STEP, codes: 8 * 4 * STEP });
planes!(Q8_0, span 2 { scales: 8 * HALVES, codes: 8 * 8 * STEP });
planes!(Iq4Nl, span 2 { scales: 8 * HALVES, codes: 8 * 4 * STEP });
planes!(Mxfp4, span 2 { scales: 8 * HALVES, codes: 8 * 4 * STEP });
planes!(Q2K, span 8 { d: HALVES, dmin: HALVES, scales: 16 * ROWS, codes: 16 * STEP });
planes!(Q3K, span 8 { d: HALVES, scales: 16 * ROWS, codes: 24 * STEP });
planes!(Q4K, span 8 { d: HALVES, dmin: HALVES, scales: 8 * ROWS, mins: 8 * ROWS, codes: 32 * STEP });
planes!(Q5K, span 8 {
    d: HALVES,
    dmin: HALVES,
    scales: 8 * ROWS,
    mins: 8 * ROWS,
    codes: 40 * STEP
});
planes!(Q6K, span 8 { d: HALVES, scales: 16 * ROWS, codes: 48 * STEP });
planes!(Iq4Xs, span 8 { d: HALVES, scales: 8 * ROWS, codes: 32 * STEP });
planes!(Tq2_0, span 8 { d: HALVES, codes: 16 * STEP });
planes!(Q1_0, span 8 { d: 2 * HALVES, codes: 8 * STEP });
planes!(Q2_0, span 4 { d: 4 * HALVES, codes: 16 * STEP });
planes!(Q8K, span 8 { d: 4 * ROWS, codes: 64 * STEP });
planes!(Nvfp4, span 2 { scales: 16 * ROWS, codes: 32 * STEP });
planes!(Iq1S, span 8 { d: HALVES, scales: 8 * ROWS, codes: 16 * STEP });
planes!(Iq1M, span 8 { d: HALVES, scales: 8 * ROWS, codes: 20 * STEP });
planes!(Iq2Xxs, span 8 { d: HALVES, scales: 8 * ROWS, codes: 24 * STEP });
planes!(Iq2S, span 8 { d: HALVES, scales: 8 * ROWS, codes: 24 * STEP });
planes!(Iq3Xxs, span 8 { d: HALVES, scales: 8 * ROWS, codes: 32 * STEP });
planes!(Iq3S, span 8 { d: HALVES, scales: 8 * ROWS, codes: 32 * STEP });

/// The step of bits of each of four blocks of `Q3_K` and the `IQ2` formats.
pub(super) const BITS_OF_Q3: [usize; 4] = [0, 9, 10, 11];
/// The step of bits of each of four blocks of `IQ1_M`.
pub(super) const BITS_OF_IQ1: [usize; 4] = [0, 0, 9, 9];
/// The first of the two steps of bits of each of four blocks of `Q6_K`.
pub(super) const BITS_OF_Q6: [usize; 4] = [0, 10, 20, 22];

/// The values of `IQ4_NL` and `IQ4_XS` codes.
const NONLINEAR: [i8; 16] =
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];
/// Twice the values of `MXFP4` codes, plus 12.
const FP4: [i8; 16] = [12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0];
/// Eight times -1, 0 and 1, shifted up by one, and, from 4 on, down; plus 9.
const EIGHTHS: [i8; 16] = [2, 10, 18, 0, 0, 8, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0];
/// The magnitudes of the `IQ2` formats, and, from 4 on, the same with a minus; plus 43.
const IQ2: [i8; 16] = [51, 68, 86, 0, 35, 18, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
/// The magnitudes of `IQ3_XXS`, and, from 8 on, the same with a minus; plus 62.
const IQ3: [i8; 16] = [66, 74, 82, 90, 98, 106, 114, 124, 58, 50, 42, 34, 26, 18, 10, 0];

macro_rules! codec {
    (
        $name:ident, group $group:literal, max $max:expr, offset $offset:expr
        $(, signed $signed:literal)? $(, split $split:literal)? $(, unroll $unroll:literal)? $(, even $even:literal)?;
        head($s:ident, $self0:ident): ($($head:ty),*) = $head_expr:expr;
        codes($self1:ident, $block1:ident, $j:ident, $g:ident) = $codes:expr;
        scale($self2:ident, $h2:ident, $block2:ident, $half2:ident) = $scale:expr;
        $(min($self3:ident, $h3:ident, $block3:ident, $half3:ident) = $min:expr;)?
    ) => {
        impl Codec for $name {
            const GROUP: usize = $group;
            const MAX_CODE: u32 = $max;
            const OFFSET: i32 = $offset;
            $(const SIGNED: bool = $signed;)?
            $(const SPLIT: bool = $split;)?
            const SPAN: usize = $name::SPAN;
            $(const UNROLL: usize = $unroll;)?
            $(const EVEN: bool = $even;)?
            $(const MINS: bool = { let _ = stringify!($min); true };)?
            const SPAN_BYTES: usize = $name::SPAN_BYTES;
            type Head<S: Isa> = ($($head,)*);

            #[inline(always)]
            fn span(self, i: usize) -> $name {
                // SAFETY: planes are where they are in the first span.
                unsafe { $name::at(self.first().wrapping_add(i * $name::SPAN_BYTES)) }
            }

            #[inline(always)]
            fn start(self) -> *const u8 {
                self.first()
            }

            #[inline(always)]
            unsafe fn head<S: Isa>($self0, $s: S) -> Self::Head<S> {
                // SAFETY: the caller's contract.
                #[allow(unused_unsafe, reason = "formats without a head")]
                unsafe { let _ = $s; $head_expr }
            }
            #[inline(always)]
            unsafe fn codes<S: Isa>($self1, $s: S, $block1: usize, $j: usize, $g: usize) -> S::B {
                // SAFETY: the caller's contract.
                unsafe { let _ = $j; $codes }
            }
            #[inline(always)]
            unsafe fn scale<S: Isa>($self2, $s: S, $h2: Self::Head<S>, $block2: usize, $half2: usize) -> S::F {
                // SAFETY: the caller's contract.
                #[allow(unused_unsafe, reason = "scales that are all in the head")]
                unsafe { let _ = ($s, $h2, $block2, $half2); $scale }
            }
            $(
                #[inline(always)]
                unsafe fn min<S: Isa>($self3, $s: S, $h3: Self::Head<S>, $block3: usize, $half3: usize) -> S::F {
                    // SAFETY: the caller's contract.
                    unsafe { let _ = ($h3, $block3, $half3); $min }
                }
            )?
        }
    };
}

codec! {
    Q4_0, group 32, max 15, offset 8;
    head(s, self): () = ();
    codes(self, block, j, g) = nibbles_16(s, self.codes, block, g);
    scale(self, h, block, half) = halves(s, self.scales.add(block * HALVES));
}
codec! {
    Q4_1, group 32, max 15, offset 0;
    head(s, self): () = ();
    codes(self, block, j, g) = nibbles_16(s, self.codes, block, g);
    scale(self, h, block, half) = halves(s, self.scales.add(block * HALVES));
    min(self, h, block, half) = halves(s, self.mins.add(block * HALVES));
}
codec! {
    Q5_0, group 32, max 31, offset 16, split true;
    head(s, self): () = ();
    codes(self, block, j, g) = {
        let high = field(s, s.load_b(self.high.add(block * STEP)), g, 1, 4);
        s.or_b(nibbles_16(s, self.codes, block, g), high)
    };
    scale(self, h, block, half) = halves(s, self.scales.add(block * HALVES));
}
codec! {
    Q5_1, group 32, max 31, offset 0, split true;
    head(s, self): () = ();
    codes(self, block, j, g) = {
        let high = field(s, s.load_b(self.high.add(block * STEP)), g, 1, 4);
        s.or_b(nibbles_16(s, self.codes, block, g), high)
    };
    scale(self, h, block, half) = halves(s, self.scales.add(block * HALVES));
    min(self, h, block, half) = halves(s, self.mins.add(block * HALVES));
}
codec! {
    Q8_0, group 32, max 127, offset 0, signed true;
    head(s, self): () = ();
    codes(self, block, j, g) = s.load_b(self.codes.add((block * 8 + g) * STEP));
    scale(self, h, block, half) = halves(s, self.scales.add(block * HALVES));
}
codec! {
    Iq4Nl, group 32, max 127, offset 0, signed true;
    head(s, self): () = ();
    codes(self, block, j, g) = s.lookup_b(&NONLINEAR, nibbles_16(s, self.codes, block, g));
    scale(self, h, block, half) = halves(s, self.scales.add(block * HALVES));
}
codec! {
    Mxfp4, group 32, max 24, offset 12;
    head(s, self): () = ();
    codes(self, block, j, g) = s.lookup_b(&FP4, nibbles_16(s, self.codes, block, g));
    scale(self, h, block, half) = s.load_bf16(self.scales.add(block * HALVES).cast());
}
codec! {
    Q2K, group 16, max 3, offset 0, unroll 4;
    head(s, self): (S::F, S::F) =
        (halves(s, self.d), s.neg(halves(s, self.dmin)));
    codes(self, block, j, g) = crumbs(s, self.codes, block, j, g, 0);
    scale(self, h, block, half) =
        s.mul(h.0, half_bytes(s, self.scales.add((2 * block + half) * ROWS), false));
    min(self, h, block, half) =
        s.mul(h.1, half_bytes(s, self.scales.add((2 * block + half) * ROWS), true));
}
codec! {
    Q3K, group 16, max 7, offset 4, split true, unroll 4;
    head(s, self): (S::F) = (halves(s, self.d),);
    codes(self, block, j, g) = crumbs_and_bits(s, self.codes, block, j, g);
    scale(self, h, block, half) =
        s.mul(h.0, signed_bytes(s, self.scales.add((2 * block + half) * ROWS)));
}
codec! {
    Q4K, group 32, max 15, offset 0, unroll 2;
    head(s, self): (S::F, S::F) =
        (halves(s, self.d), s.neg(halves(s, self.dmin)));
    codes(self, block, j, g) = nibbles_32(s, self.codes, block, j, g);
    scale(self, h, block, half) = s.mul(h.0, bytes(s, self.scales.add(block * ROWS)));
    min(self, h, block, half) = s.mul(h.1, bytes(s, self.mins.add(block * ROWS)));
}
codec! {
    Q5K, group 32, max 31, offset 0, split true, unroll 2;
    head(s, self): (S::F, S::F) = (halves(s, self.d), s.neg(halves(s, self.dmin)));
    codes(self, block, j, g) = {
        // Two blocks: the bits of each, the codes of both.
        let plane = self.codes.add((block - j % 2) * 5 * STEP);
        let bits = s.load_b(plane.add(j % 2 * STEP));
        s.or_b(nibbles_32(s, plane.add(2 * STEP), j % 2, j, g), field(s, bits, g, 1, 4))
    };
    scale(self, h, block, half) = s.mul(h.0, bytes(s, self.scales.add(block * ROWS)));
    min(self, h, block, half) = s.mul(h.1, bytes(s, self.mins.add(block * ROWS)));
}
codec! {
    Q6K, group 16, max 63, offset 32, split true, unroll 4, even true;
    head(s, self): (S::F) = (halves(s, self.d),);
    codes(self, block, j, g) = {
        // Four blocks: two steps of bits and the codes of the first and third, the same of the second
        // and fourth, then the bits of the third and fourth.
        let plane = self.codes.add((block - j % 4) * 6 * STEP);
        let codes = s.load_b(plane.add((j % 2 * 10 + 2 + g) * STEP));
        let bits = s.load_b(plane.add((BITS_OF_Q6[j % 4] + g / 4) * STEP));
        let low = field(s, codes, j % 4 / 2 * 4, 4, 0);
        s.or_b(low, field(s, bits, g % 4 * 2, 2, 4))
    };
    scale(self, h, block, half) =
        s.mul(h.0, signed_bytes(s, self.scales.add((2 * block + half) * ROWS)));
}
codec! {
    Iq4Xs, group 32, max 127, offset 0, signed true;
    head(s, self): (S::F) = (halves(s, self.d),);
    codes(self, block, j, g) = s.lookup_b(&NONLINEAR, nibbles_16(s, self.codes, block, g));
    scale(self, h, block, half) = s.mul(h.0, signed_bytes(s, self.scales.add(block * ROWS)));
}
codec! {
    Tq2_0, group 32, max 3, offset 1, unroll 4;
    head(s, self): (S::F) = (halves(s, self.d),);
    codes(self, block, j, g) = crumbs(s, self.codes, block, j, g, 0);
    scale(self, h, block, half) = h.0;
}
codec! {
    Q1_0, group 32, max 2, offset 1, even false;
    head(s, self): () = ();
    codes(self, block, j, g) = field(s, s.load_b(self.codes.add(block * STEP)), g, 1, 1);
    scale(self, h, block, half) = halves(s, self.d.add(block / 4 * HALVES));
}
codec! {
    Q2_0, group 32, max 3, offset 1, even false;
    head(s, self): () = ();
    codes(self, block, j, g) =
        field(s, s.load_b(self.codes.add((2 * block + g / 4) * STEP)), g % 4 * 2, 2, 0);
    scale(self, h, block, half) = halves(s, self.d.add(block / 2 * HALVES));
}
codec! {
    Q8K, group 32, max 127, offset 0, signed true;
    head(s, self): (S::F) = (s.load(self.d.cast()),);
    codes(self, block, j, g) = s.load_b(self.codes.add((block * 8 + g) * STEP));
    scale(self, h, block, half) = h.0;
}
codec! {
    Nvfp4, group 16, max 24, offset 12;
    head(s, self): () = ();
    codes(self, block, j, g) = {
        // Sixteen elements in eight bytes: element `k` low and `k + 8` high.
        let v = s.load_b(self.codes.add((block * 4 + g / 4 * 2 + g % 2) * STEP));
        s.lookup_b(&FP4, field(s, v, g % 4 / 2 * 4, 4, 0))
    };
    scale(self, h, block, half) = half_e4m3(s, self.scales.add((2 * block + half) * ROWS));
}
codec! {
    // Codes are -1, 0 and 1, plus one, in units of eight eighths; the shift is part of the minimum.
    Iq1S, group 32, max 3, offset 0, unroll 4;
    head(s, self): (S::F) = (halves(s, self.d),);
    codes(self, block, j, g) = crumbs(s, self.codes, block, j, g, 0);
    scale(self, h, block, half) =
        s.mul(h.0, s.abs(signed_bytes(s, self.scales.add(block * ROWS))));
    min(self, h, block, half) = {
        let scale = signed_bytes(s, self.scales.add(block * ROWS));
        s.mul(h.0, s.fma(scale, s.splat(0.125), s.neg(s.abs(scale))))
    };
}
codec! {
    Iq1M, group 16, max 18, offset 9, split true, unroll 4;
    head(s, self): (S::F) = (s.mul(halves(s, self.d), s.splat(0.125)),);
    codes(self, block, j, g) = {
        // Four blocks: a bit for eight elements of the first two, the codes of all, the bits of the
        // others.
        let plane = self.codes.add((block - j % 4) / 2 * 5 * STEP);
        let bits = s.load_b(plane.add(BITS_OF_IQ1[j % 4] * STEP));
        let shift = field(s, bits, j % 2 * 4 + g / 2, 1, 2);
        s.lookup_b(&EIGHTHS, s.or_b(crumbs(s, plane.add(STEP), j % 4, j, g, 0), shift))
    };
    scale(self, h, block, half) =
        s.mul(h.0, half_bytes(s, self.scales.add(block * ROWS), half == 1));
}
codec! {
    Iq2Xxs, group 32, max 86, offset 43, split true, unroll 4;
    head(s, self): (S::F) = (s.mul(halves(s, self.d), s.splat(0.125)),);
    codes(self, block, j, g) =
        s.lookup_b(&IQ2, crumbs_and_bits(s, self.codes, block, j, g));
    scale(self, h, block, half) = s.mul(h.0, bytes(s, self.scales.add(block * ROWS)));
}
codec! {
    Iq2S, group 16, max 86, offset 43, split true, unroll 4;
    head(s, self): (S::F, S::F) = {
        let d = halves(s, self.d);
        (s.mul(d, s.splat(0.25)), s.mul(d, s.splat(0.125)))
    };
    codes(self, block, j, g) =
        s.lookup_b(&IQ2, crumbs_and_bits(s, self.codes, block, j, g));
    scale(self, h, block, half) =
        s.fma(half_bytes(s, self.scales.add(block * ROWS), half == 1), h.0, h.1);
}
codec! {
    Iq3Xxs, group 32, max 124, offset 62;
    head(s, self): (S::F) = (s.mul(halves(s, self.d), s.splat(0.25)),);
    codes(self, block, j, g) = s.lookup_b(&IQ3, nibbles_16(s, self.codes, block, g));
    scale(self, h, block, half) = s.mul(h.0, bytes(s, self.scales.add(block * ROWS)));
}
codec! {
    // Codes are twice their place.
    Iq3S, group 32, max 30, offset 15;
    head(s, self): (S::F) = (halves(s, self.d),);
    codes(self, block, j, g) =
        field(s, s.load_b(self.codes.add((block * 4 + g % 4) * STEP)), g / 4 * 4, 4, 1);
    scale(self, h, block, half) = s.mul(h.0, bytes(s, self.scales.add(block * ROWS)));
}

/// A stretch of a tile unpacked to bytes and floats. What the product needs to know of the format:
/// the group, the steps after which to fold, whether codes are signed and whether there are minima.
#[derive(Clone, Copy)]
pub(super) struct Unpacked<
    const GROUP: usize,
    const FOLD: usize,
    const SIGNED: bool,
    const MINS: bool,
> {
    pub(super) codes: *const u8,
    pub(super) scales: *const f32,
    pub(super) mins: *const f32,
}

impl<const GROUP: usize, const FOLD: usize, const SIGNED: bool, const MINS: bool> Codec
    for Unpacked<GROUP, FOLD, SIGNED, MINS>
{
    const GROUP: usize = GROUP;
    // Any code that folds as often.
    const MAX_CODE: u32 = 127 / FOLD as u32;
    const SIGNED: bool = SIGNED;
    const SPAN: usize = 1;
    const PAIRED: bool = true;
    /// Stands for whatever offset: unsigned formats have either that or minima.
    const OFFSET: i32 = if SIGNED || MINS { 0 } else { 1 };
    const MINS: bool = MINS;
    type Head<S: Isa> = ();

    #[inline(always)]
    fn span(self, i: usize) -> Self {
        let groups = i * (32 / GROUP) * ROWS;
        Unpacked {
            codes: self.codes.wrapping_add(i * 8 * STEP),
            scales: self.scales.wrapping_add(groups),
            mins: self.mins.wrapping_add(groups),
        }
    }

    #[inline(always)]
    unsafe fn head<S: Isa>(self, _s: S) {}
    #[inline(always)]
    unsafe fn codes<S: Isa>(self, s: S, block: usize, _j: usize, g: usize) -> S::B {
        // SAFETY: the caller's contract.
        unsafe { s.load_b(self.codes.add((block * 8 + g) * STEP)) }
    }
    #[inline(always)]
    unsafe fn scale<S: Isa>(self, s: S, _head: (), block: usize, half: usize) -> S::F {
        // SAFETY: the caller's contract.
        unsafe { s.load(self.scales.add((block * 32 / GROUP + half) * ROWS)) }
    }
    #[inline(always)]
    unsafe fn min<S: Isa>(self, s: S, _head: (), block: usize, half: usize) -> S::F {
        // SAFETY: the caller's contract.
        unsafe { s.load(self.mins.add((block * 32 / GROUP + half) * ROWS)) }
    }
}
