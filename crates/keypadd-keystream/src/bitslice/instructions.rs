//! Proves which vector instructions the CPU has: a value of these types exists only where it has
//! them.
//!
//! Code compiled for an instruction takes its proof, so that it cannot be called elsewhere.

/// Proves that the CPU has SSE2, as every x86-64 does.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
pub(crate) struct HasSse2(());

#[cfg(target_arch = "x86_64")]
impl HasSse2 {
    pub(super) const ALWAYS: Self = Self(());
}

/// Proves that the CPU has AVX2.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
pub(crate) struct HasAvx2(());

#[cfg(target_arch = "x86_64")]
impl HasAvx2 {
    pub(super) fn detect() -> Option<Self> {
        is_x86_feature_detected!("avx2").then_some(Self(()))
    }
}

/// Proves that the CPU has AVX-512F.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
pub(crate) struct HasAvx512(());

#[cfg(target_arch = "x86_64")]
impl HasAvx512 {
    pub(super) fn detect() -> Option<Self> {
        is_x86_feature_detected!("avx512f").then_some(Self(()))
    }
}

/// Proves that the CPU has NEON, as every 64-bit ARM target of Rust does.
#[cfg(target_arch = "aarch64")]
#[derive(Clone, Copy)]
pub(crate) struct HasNeon(());

#[cfg(target_arch = "aarch64")]
impl HasNeon {
    pub(super) const ALWAYS: Self = Self(());
}
