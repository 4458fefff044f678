//! Sampling of the decision log.

use std::hash::Hasher;

use siphasher::sip::SipHasher13;
use sluicegate_config::SampleRate;
use sluicegate_core::Id;

/// Samples by a hash of the request id: every node makes the same choice for a request, and its
/// retries are logged together. The hash is keyed, so that a caller cannot choose ids that stay out
/// of the log.
#[derive(Debug)]
pub(super) struct Sampler {
    hash: SipHasher13,
    allowed: SampleRate,
    denied: SampleRate,
}

impl Sampler {
    pub(super) fn new(key: &[u8; 32], allowed: SampleRate, denied: SampleRate) -> Self {
        let key = blake3::derive_key("sluicegate 2026 decision log sampling", key);
        let mut half = [0; 16];
        half.copy_from_slice(&key[..16]);
        Self { hash: SipHasher13::new_with_key(&half), allowed, denied }
    }

    /// Returns the share under which the decision is logged, or `None` if it is not.
    pub(super) fn takes(&self, id: Id, allowed: bool) -> Option<SampleRate> {
        let share = if allowed { self.allowed } else { self.denied };
        (share == SampleRate::ALL || self.place(id) < share.parts_per_million()).then_some(share)
    }

    /// Returns an evenly distributed number below a million.
    fn place(&self, id: Id) -> u32 {
        let mut hash = self.hash;
        hash.write(&id.to_bits().to_le_bytes());
        let scaled = u128::from(hash.finish()) * u128::from(SampleRate::ALL.parts_per_million());
        (scaled >> 64) as u32
    }
}
