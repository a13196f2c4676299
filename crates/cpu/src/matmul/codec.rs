//! How tiles of quantised weights are stored and unpacked, one small type a format.
//!
//! A tile is 16 rows of the weights; lane `r` of every vector is row `r`. Codes lie in vectors of
//! 64 bytes that hold 4 consecutive `k` of each row (a *step*), so a 32-block is 8 steps. Narrow
//! codes share bytes the way the file's own format does (element `k` with element `k + 16`, `k +
//! 32` or `k + 64`), so that re-tiling moves 4-byte pieces and touches no bit. A tile is a few
//! planes, each contiguous: codes, higher code bits, scales.
//!
//! The value of a weight is `scale * (code - OFFSET) + min`.

use cyb_simd::Isa;

/// Unpacks the tiles of one format. Blocks are 32 values; `j` is the block's index modulo
/// [`UNROLL`](Codec::UNROLL) (a literal in the callers, so that shifts become immediates).
pub(super) trait Codec: Copy {
    /// Values that share a scale: 16 or 32.
    const GROUP: usize;
    /// The largest code; codes of a `SIGNED` format are any `i8`.
    const MAX_CODE: u32;
    const SIGNED: bool = false;
    const OFFSET: i32;
    const MINS: bool = false;
    /// 32-blocks that share what `head` loads: 1 or 8.
    const SUPER: usize = 1;
    /// Blocks whose codes share bytes: 1, 2 or 4.
    const UNROLL: usize = 1;
    /// Whether codes come from two planes, so that unpacking takes longer than a field of one load.
    const SPLIT: bool = false;
    /// Bytes of a tile for eight blocks, and those of its codes; 0 for weights that are in the cache
    /// already.
    const STREAM: usize = 0;
    const CODES: usize = 0;
    type Head<S: Isa>: Copy;

    /// The first byte of the tile.
    fn start(self) -> *const u8 {
        std::ptr::null()
    }

    /// # Safety
    /// All functions: block indices are inside the tile.
    unsafe fn head<S: Isa>(self, s: S, superblock: usize) -> Self::Head<S>;
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

/// Step `g` of a block of single bits: 32 bytes a row hold eight blocks.
#[inline(always)]
unsafe fn bits<S: Isa>(s: S, plane: *const u8, block: usize, g: usize, to: usize) -> S::B {
    let bit = block % 8;
    // SAFETY: the caller's contract: the block is inside the plane.
    let v = unsafe { s.load_b(plane.add((block - bit + g) * STEP)) };
    // Shifting by a variable costs no more than the loads that unrolling would save.
    s.shl_b(s.and_b(s.shr_b(v, bit as u32), s.splat_b(1)), to as u32)
}

/// Where the planes of a tile lie: (bytes a 32-block, for each plane), in order.
macro_rules! planes {
    ($name:ident { $($plane:ident: $bytes:expr),+ }) => {
        #[derive(Clone, Copy)]
        pub(super) struct $name { $($plane: *const u8),+ }

        impl $name {
            /// Bytes of a tile of `blocks` 32-blocks.
            pub(super) const fn tile_bytes(blocks: usize) -> usize {
                0 $(+ $bytes * blocks / 8)+
            }

            /// # Safety
            /// `tile` is valid for reading `tile_bytes(blocks)` bytes.
            #[inline(always)]
            #[allow(unused_assignments, reason = "the last plane's end")]
            pub(super) unsafe fn at(tile: *const u8, blocks: usize) -> $name {
                let mut at = 0;
                $(
                    // SAFETY: planes follow one another inside the tile.
                    let $plane = unsafe { tile.add(at) };
                    at += $bytes * blocks / 8;
                )+
                $name { $($plane),+ }
            }

            /// Bytes of the first plane for eight 32-blocks.
            const FIRST: usize = [$($bytes),+][0];

            const fn first(self) -> *const u8 {
                let first = [$(self.$plane),+];
                first[0]
            }

            /// Byte offsets of the planes.
            pub(super) fn offsets(blocks: usize) -> Vec<usize> {
                let mut at = 0;
                [$($bytes),+].iter().map(|bytes| { let start = at; at += bytes * blocks / 8; start }).collect()
            }
        }
    };
}

// Bytes are for eight 32-blocks, so that what is shared by a superblock counts whole.
planes!(Q4_0 { codes: 8 * 4 * STEP, scales: 8 * HALVES });
planes!(Q4_1 { codes: 8 * 4 * STEP, scales: 8 * HALVES, mins: 8 * HALVES });
planes!(Q5_0 { codes: 8 * 4 * STEP, high: 8 * STEP, scales: 8 * HALVES });
planes!(Q5_1 { codes: 8 * 4 * STEP, high: 8 * STEP, scales: 8 * HALVES, mins: 8 * HALVES });
planes!(Q8_0 { codes: 8 * 8 * STEP, scales: 8 * HALVES });
planes!(Iq4Nl { codes: 8 * 4 * STEP, scales: 8 * HALVES });
planes!(Mxfp4 { codes: 8 * 4 * STEP, scales: 8 * HALVES });
planes!(Q2K { codes: 16 * STEP, scales: 16 * ROWS, d: HALVES, dmin: HALVES });
planes!(Q3K { codes: 16 * STEP, high: 8 * STEP, scales: 16 * ROWS, d: HALVES });
planes!(Q4K { codes: 32 * STEP, scales: 8 * ROWS, mins: 8 * ROWS, d: HALVES, dmin: HALVES });
planes!(Q5K {
    codes: 32 * STEP,
    high: 8 * STEP,
    scales: 8 * ROWS,
    mins: 8 * ROWS,
    d: HALVES,
    dmin: HALVES
});
planes!(Q6K { codes: 32 * STEP, high: 16 * STEP, scales: 16 * ROWS, d: HALVES });
planes!(Iq4Xs { codes: 32 * STEP, scales: 8 * ROWS, d: HALVES });
planes!(Tq2_0 { codes: 16 * STEP, d: HALVES });

/// The values of `IQ4_NL` and `IQ4_XS` codes.
const NONLINEAR: [i8; 16] =
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];
/// Twice the values of `MXFP4` codes, plus 12.
const FP4: [i8; 16] = [12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0];

macro_rules! codec {
    (
        $name:ident, group $group:literal, max $max:expr, offset $offset:expr
        $(, signed $signed:literal)? $(, split $split:literal)? $(, super $super:literal unroll $unroll:literal)?;
        head($s:ident, $sb:ident, $self0:ident): ($($head:ty),*) = $head_expr:expr;
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
            $(const SUPER: usize = $super;
            const UNROLL: usize = $unroll;)?
            $(const MINS: bool = { let _ = stringify!($min); true };)?
            const STREAM: usize = $name::tile_bytes(8);
            const CODES: usize = $name::FIRST;
            type Head<S: Isa> = ($($head,)*);

            #[inline(always)]
            fn start(self) -> *const u8 {
                self.first()
            }

            #[inline(always)]
            unsafe fn head<S: Isa>($self0, $s: S, $sb: usize) -> Self::Head<S> {
                // SAFETY: the caller's contract.
                #[allow(unused_unsafe, reason = "formats without a head")]
                unsafe { let _ = ($s, $sb); $head_expr }
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
    head(s, sb, self): () = ();
    codes(self, block, j, g) = nibbles_16(s, self.codes, block, g);
    scale(self, h, block, half) = halves(s, self.scales.add(block * HALVES));
}
codec! {
    Q4_1, group 32, max 15, offset 0;
    head(s, sb, self): () = ();
    codes(self, block, j, g) = nibbles_16(s, self.codes, block, g);
    scale(self, h, block, half) = halves(s, self.scales.add(block * HALVES));
    min(self, h, block, half) = halves(s, self.mins.add(block * HALVES));
}
codec! {
    Q5_0, group 32, max 31, offset 16, split true;
    head(s, sb, self): () = ();
    codes(self, block, j, g) = {
        let high = field(s, s.load_b(self.high.add(block * STEP)), g, 1, 4);
        s.or_b(nibbles_16(s, self.codes, block, g), high)
    };
    scale(self, h, block, half) = halves(s, self.scales.add(block * HALVES));
}
codec! {
    Q5_1, group 32, max 31, offset 0, split true;
    head(s, sb, self): () = ();
    codes(self, block, j, g) = {
        let high = field(s, s.load_b(self.high.add(block * STEP)), g, 1, 4);
        s.or_b(nibbles_16(s, self.codes, block, g), high)
    };
    scale(self, h, block, half) = halves(s, self.scales.add(block * HALVES));
    min(self, h, block, half) = halves(s, self.mins.add(block * HALVES));
}
codec! {
    Q8_0, group 32, max 127, offset 0, signed true;
    head(s, sb, self): () = ();
    codes(self, block, j, g) = s.load_b(self.codes.add((block * 8 + g) * STEP));
    scale(self, h, block, half) = halves(s, self.scales.add(block * HALVES));
}
codec! {
    Iq4Nl, group 32, max 127, offset 0, signed true;
    head(s, sb, self): () = ();
    codes(self, block, j, g) = s.lookup_b(&NONLINEAR, nibbles_16(s, self.codes, block, g));
    scale(self, h, block, half) = halves(s, self.scales.add(block * HALVES));
}
codec! {
    Mxfp4, group 32, max 24, offset 12;
    head(s, sb, self): () = ();
    codes(self, block, j, g) = s.lookup_b(&FP4, nibbles_16(s, self.codes, block, g));
    scale(self, h, block, half) = s.load_bf16(self.scales.add(block * HALVES).cast());
}
codec! {
    Q2K, group 16, max 3, offset 0, super 8 unroll 4;
    head(s, sb, self): (S::F, S::F) =
        (halves(s, self.d.add(sb * HALVES)), s.neg(halves(s, self.dmin.add(sb * HALVES))));
    codes(self, block, j, g) = crumbs(s, self.codes, block, j, g, 0);
    scale(self, h, block, half) = {
        let both = s.load_u8(self.scales.add((2 * block + half) * ROWS));
        s.mul(h.0, s.to_float(s.and_i(both, s.splat_i(15))))
    };
    min(self, h, block, half) = {
        let both = s.load_u8(self.scales.add((2 * block + half) * ROWS));
        s.mul(h.1, s.to_float(s.sar_i(both, 4)))
    };
}
codec! {
    Q3K, group 16, max 7, offset 4, split true, super 8 unroll 4;
    head(s, sb, self): (S::F) = (halves(s, self.d.add(sb * HALVES)),);
    codes(self, block, j, g) = s.or_b(
        crumbs(s, self.codes, block, j, g, 0),
        bits(s, self.high, block, g, 2),
    );
    scale(self, h, block, half) =
        s.mul(h.0, signed_bytes(s, self.scales.add((2 * block + half) * ROWS)));
}
codec! {
    Q4K, group 32, max 15, offset 0, super 8 unroll 2;
    head(s, sb, self): (S::F, S::F) =
        (halves(s, self.d.add(sb * HALVES)), s.neg(halves(s, self.dmin.add(sb * HALVES))));
    codes(self, block, j, g) = nibbles_32(s, self.codes, block, j, g);
    scale(self, h, block, half) = s.mul(h.0, bytes(s, self.scales.add(block * ROWS)));
    min(self, h, block, half) = s.mul(h.1, bytes(s, self.mins.add(block * ROWS)));
}
codec! {
    Q5K, group 32, max 31, offset 0, split true, super 8 unroll 2;
    head(s, sb, self): (S::F, S::F) =
        (halves(s, self.d.add(sb * HALVES)), s.neg(halves(s, self.dmin.add(sb * HALVES))));
    codes(self, block, j, g) = s.or_b(
        nibbles_32(s, self.codes, block, j, g),
        bits(s, self.high, block, g, 4),
    );
    scale(self, h, block, half) = s.mul(h.0, bytes(s, self.scales.add(block * ROWS)));
    min(self, h, block, half) = s.mul(h.1, bytes(s, self.mins.add(block * ROWS)));
}
codec! {
    Q6K, group 16, max 63, offset 32, split true, super 8 unroll 4;
    head(s, sb, self): (S::F) = (halves(s, self.d.add(sb * HALVES)),);
    codes(self, block, j, g) = {
        // 64 bytes a row hold four blocks: elements 0..64 low, 64..128 high.
        let at = (block - j % 4) * 4 + j % 2 * 8 + g;
        let low = field(s, s.load_b(self.codes.add(at * STEP)), j % 4 / 2 * 4, 4, 0);
        s.or_b(low, crumbs(s, self.high, block, j, g, 4))
    };
    scale(self, h, block, half) =
        s.mul(h.0, signed_bytes(s, self.scales.add((2 * block + half) * ROWS)));
}
codec! {
    Iq4Xs, group 32, max 127, offset 0, signed true, super 8 unroll 1;
    head(s, sb, self): (S::F) = (halves(s, self.d.add(sb * HALVES)),);
    codes(self, block, j, g) = s.lookup_b(&NONLINEAR, nibbles_16(s, self.codes, block, g));
    scale(self, h, block, half) = s.mul(h.0, signed_bytes(s, self.scales.add(block * ROWS)));
}
codec! {
    Tq2_0, group 32, max 3, offset 1, super 8 unroll 4;
    head(s, sb, self): (S::F) = (halves(s, self.d.add(sb * HALVES)),);
    codes(self, block, j, g) = crumbs(s, self.codes, block, j, g, 0);
    scale(self, h, block, half) = h.0;
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
    /// Stands for whatever offset: unsigned formats have either that or minima.
    const OFFSET: i32 = if SIGNED || MINS { 0 } else { 1 };
    const MINS: bool = MINS;
    type Head<S: Isa> = ();

    #[inline(always)]
    unsafe fn head<S: Isa>(self, _s: S, _superblock: usize) {}
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
