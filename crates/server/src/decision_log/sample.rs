//! Sampling of the decision log.

use std::hash::Hasher;

use siphasher::sip::SipHasher13;
use sluicegate_core::Id;

/// A share of all decisions, in parts per million.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SampleShare(u32);

impl SampleShare {
    /// No decisions.
    pub const NONE: Self = Self(0);
    /// All decisions.
    pub const ALL: Self = Self(MILLION);

    /// Creates a share of `ppm` parts per million; `None` if it is more than a million.
    pub const fn ppm(ppm: u32) -> Option<Self> {
        if ppm > MILLION { None } else { Some(Self(ppm)) }
    }

    /// Returns the share in parts per million.
    pub const fn as_ppm(self) -> u32 {
        self.0
    }
}

const MILLION: u32 = 1_000_000;

/// Samples by a hash of the request id: every node makes the same choice for a request, and its
/// retries are logged together. The hash is keyed, so that a caller cannot choose ids that stay out
/// of the log.
#[derive(Debug)]
pub(super) struct Sampler {
    hash: SipHasher13,
    allowed: SampleShare,
    denied: SampleShare,
}

impl Sampler {
    pub(super) fn new(key: &[u8; 32], allowed: SampleShare, denied: SampleShare) -> Self {
        let key = blake3::derive_key("sluicegate 2026 decision log sampling", key);
        let mut half = [0; 16];
        half.copy_from_slice(&key[..16]);
        Self { hash: SipHasher13::new_with_key(&half), allowed, denied }
    }

    /// Returns the share under which the decision is logged, or `None` if it is not.
    pub(super) fn takes(&self, id: Id, allowed: bool) -> Option<SampleShare> {
        let share = if allowed { self.allowed } else { self.denied };
        (share == SampleShare::ALL || self.place(id) < share.0).then_some(share)
    }

    /// Returns an evenly distributed number below a million.
    fn place(&self, id: Id) -> u32 {
        let mut hash = self.hash;
        hash.write(&id.to_bits().to_le_bytes());
        let scaled = u128::from(hash.finish()) * u128::from(MILLION);
        (scaled >> 64) as u32
    }
}
