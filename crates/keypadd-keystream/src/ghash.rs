//! Computes GHASH of a packet (SP 800-38D 6.4, 7.1) by carry-less multiplication, with one
//! reduction for up to sixteen blocks.
//!
//! The `ghash` crate reduces every fourth product and multiplies 128 bits at a time, which takes
//! longer than AES-GCM in one pass; it remains the path of CPUs without PCLMULQDQ, and what the
//! others are tested against. Constant-time: branches and addresses depend on lengths alone. Knows
//! neither keystream nor packet numbers: the mask of the tag comes from the caller.

use cipher::array::Array;
use ghash::GHash;
use ghash::universal_hash::UniversalHash;
use std::fmt;
use zeroize::zeroize_stack;

#[cfg(target_arch = "x86_64")]
mod clmul_128;
#[cfg(target_arch = "x86_64")]
mod clmul_256;
#[cfg(target_arch = "x86_64")]
mod clmul_512;
#[cfg(target_arch = "x86_64")]
mod kernel;

#[cfg(target_arch = "x86_64")]
use kernel::Powers;

/// Bytes of a block, of H, of the mask and of a tag.
const BLOCK_BYTES: usize = 16;

pub(crate) type Block = [u8; BLOCK_BYTES];

/// Upper bound on the stack of [`Key::tag`]'s caller and its arguments, and on what a function may
/// use below its frame without reserving it (128 bytes, System V ABI for x86-64, 3.2.2).
const CALLER_STACK_BYTES: usize = 256;

/// Upper bound on the stack used by [`Key::tag`] and its caller: powers of H and blocks that do not
/// fit in registers, or the crate's state. Vectors of 256 and 512 bits need less, see
/// [`Key::wipe_stack`].
const STACK_BYTES: usize = if cfg!(debug_assertions) { 16 << 10 } else { 1024 };

/// The blocks that the crate multiplies at a time.
const CRATE_BLOCKS: usize = 4;

/// An implementation of GHASH; a value proves that this CPU has the instructions.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct GhashPath(Path);

impl GhashPath {
    /// Every implementation that this CPU can run, the slowest first.
    pub fn available() -> impl Iterator<Item = Self> {
        Path::available().map(Self)
    }

    /// The fastest on this CPU.
    pub fn fastest() -> Self {
        Self(Path::fastest())
    }

    /// The name in reports.
    pub const fn name(self) -> &'static str {
        self.0.name()
    }
}

impl fmt::Debug for GhashPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Path {
    /// By the `ghash` crate.
    Crate,
    #[cfg(target_arch = "x86_64")]
    Clmul128(clmul_128::HasPclmul),
    #[cfg(target_arch = "x86_64")]
    Clmul256(clmul_256::HasVpclmul256),
    #[cfg(target_arch = "x86_64")]
    Clmul512(clmul_512::HasVpclmul512),
}

impl Path {
    fn available() -> impl Iterator<Item = Self> {
        #[cfg(target_arch = "x86_64")]
        let wide = [
            clmul_128::HasPclmul::detect().map(Self::Clmul128),
            clmul_256::HasVpclmul256::detect().map(Self::Clmul256),
            clmul_512::HasVpclmul512::detect().map(Self::Clmul512),
        ];
        #[cfg(not(target_arch = "x86_64"))]
        let wide: [Option<Self>; 0] = [];
        std::iter::once(Self::Crate).chain(wide.into_iter().flatten())
    }

    fn fastest() -> Self {
        Self::available().last().expect("the crate runs everywhere")
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Crate => "ghash-crate",
            #[cfg(target_arch = "x86_64")]
            Self::Clmul128(_) => "pclmulqdq-128",
            #[cfg(target_arch = "x86_64")]
            Self::Clmul256(_) => "vpclmulqdq-256",
            #[cfg(target_arch = "x86_64")]
            Self::Clmul512(_) => "vpclmulqdq-512",
        }
    }
}

/// The hash key H, expanded for one implementation. In memory of its own, because a value that
/// moves leaves a copy behind; wiped when dropped.
pub(crate) struct Key(Expanded);

enum Expanded {
    Crate(CrateKey),
    #[cfg(target_arch = "x86_64")]
    Clmul128(clmul_128::HasPclmul, Powers),
    #[cfg(target_arch = "x86_64")]
    Clmul256(clmul_256::HasVpclmul256, Powers),
    #[cfg(target_arch = "x86_64")]
    Clmul512(clmul_512::HasVpclmul512, Powers),
}

impl Key {
    pub(crate) fn new(GhashPath(path): GhashPath, h: &Block) -> Self {
        Self(match path {
            Path::Crate => Expanded::Crate(CrateKey(Box::new(GHash::new(&(*h).into())))),
            #[cfg(target_arch = "x86_64")]
            Path::Clmul128(proof) => Expanded::Clmul128(proof, proof.powers(h)),
            #[cfg(target_arch = "x86_64")]
            Path::Clmul256(proof) => Expanded::Clmul256(proof, proof.narrow().powers(h)),
            #[cfg(target_arch = "x86_64")]
            Path::Clmul512(proof) => Expanded::Clmul512(proof, proof.narrow().powers(h)),
        })
    }

    /// The tag of `header` and `ciphertext`: GHASH of both, each zero-padded to whole blocks, and
    /// of their lengths in bits (SP 800-38D 7.1, steps 4 and 5), XORed with the mask. The bare hash
    /// of known data would give H away, so it never leaves this function.
    pub(crate) fn tag(&self, header: &[u8], ciphertext: &[u8], mask: &Block) -> Block {
        match &self.0 {
            Expanded::Crate(key) => key.tag(header, ciphertext, mask),
            #[cfg(target_arch = "x86_64")]
            Expanded::Clmul128(proof, powers) => proof.tag(powers, header, ciphertext, mask),
            #[cfg(target_arch = "x86_64")]
            Expanded::Clmul256(proof, powers) => proof.tag(powers, header, ciphertext, mask),
            #[cfg(target_arch = "x86_64")]
            Expanded::Clmul512(proof, powers) => proof.tag(powers, header, ciphertext, mask),
        }
    }

    /// Wipes the stack that [`Self::tag`] used, and its caller, with at most
    /// [`CALLER_STACK_BYTES`]: called by that caller's caller. Wiping 1 KiB would take longer than
    /// a short packet's hash.
    #[inline]
    pub(crate) fn wipe_stack(&self) {
        #[cfg(target_arch = "x86_64")]
        if !cfg!(debug_assertions) {
            match &self.0 {
                Expanded::Clmul512(..) => return zeroize_stack::<{ CALLER_STACK_BYTES + 128 }>(),
                Expanded::Clmul256(..) => return zeroize_stack::<{ CALLER_STACK_BYTES + 384 }>(),
                _ => {}
            }
        }
        zeroize_stack::<STACK_BYTES>();
    }
}

/// The crate's state before the first block.
struct CrateKey(Box<GHash>);

impl CrateKey {
    /// A group of blocks costs little more than one block, so leading zero blocks fill the first
    /// group: GHASH starts from zero, and zeros leave it there.
    #[inline(never)]
    fn tag(&self, header: &[u8], ciphertext: &[u8], mask: &Block) -> Block {
        let lengths = lengths(header, ciphertext).to_be_bytes();
        let blocks = blocks(header, ciphertext);
        let mut state = (*self.0).clone();
        let mut group = [Array::default(); CRATE_BLOCKS];
        let mut filled = blocks.next_multiple_of(CRATE_BLOCKS) - blocks;
        for mut part in [header, ciphertext, &lengths] {
            while !part.is_empty() {
                if filled == 0 && part.len() >= CRATE_BLOCKS * BLOCK_BYTES {
                    let whole = part.len() - part.len() % (CRATE_BLOCKS * BLOCK_BYTES);
                    let (whole, rest) = part.split_at(whole);
                    state.update_padded(whole);
                    part = rest;
                    continue;
                }
                let (bytes, rest) = part.split_at(part.len().min(BLOCK_BYTES));
                group[filled][..bytes.len()].copy_from_slice(bytes);
                group[filled][bytes.len()..].fill(0);
                part = rest;
                filled += 1;
                if filled == CRATE_BLOCKS {
                    state.update(&group);
                    filled = 0;
                }
            }
        }
        debug_assert_eq!(filled, 0, "the length block completes a group");
        let hash: Block = state.finalize().into();
        (u128::from_ne_bytes(hash) ^ u128::from_ne_bytes(*mask)).to_ne_bytes()
    }
}

impl Drop for CrateKey {
    /// The crate's own wipe is off: byte by byte, it takes as long as hashing 128 bytes. The state
    /// has no heap part, so assignment overwrites it.
    fn drop(&mut self) {
        *self.0 = GHash::new(&Array::default());
        zeroize::optimization_barrier(&*self.0);
    }
}

/// The block with both lengths in bits, as a big-endian number.
#[inline(always)]
fn lengths(header: &[u8], ciphertext: &[u8]) -> u128 {
    let [header, ciphertext] = [header, ciphertext].map(|part| part.len() as u128 * 8);
    header << 64 | ciphertext
}

/// The blocks of both parts and their lengths.
#[inline(always)]
fn blocks(header: &[u8], ciphertext: &[u8]) -> usize {
    header.len().div_ceil(BLOCK_BYTES) + ciphertext.len().div_ceil(BLOCK_BYTES) + 1
}

#[cfg(test)]
mod tests;
