//! [`ClusterSlot`]: one of the 16,384 hash slots of a Redis Cluster. Every key lies in one slot,
//! and every slot on one server.

use std::fmt;
use std::sync::LazyLock;

/// Number of slots.
pub(super) const SLOTS: usize = 16_384;

/// A hash slot.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct ClusterSlot(u16);

impl ClusterSlot {
    /// Returns the slot with this number, or `None` if the number is too large.
    pub(super) fn new(number: u16) -> Option<Self> {
        (usize::from(number) < SLOTS).then_some(Self(number))
    }

    /// Returns the slot of a key. If a part of the key is in braces, only that part is hashed.
    pub(super) fn of(name: &[u8]) -> Self {
        Self(crc16(hashed_part(name)) % SLOTS as u16)
    }

    pub(super) const fn index(self) -> usize {
        self.0 as usize
    }

    /// Returns a short text that hashes to this slot. A key with the text in braces lies in the
    /// slot, and the text depends only on the slot.
    pub(super) fn tag(self) -> &'static str {
        &TAGS[self.index()]
    }
}

impl fmt::Debug for ClusterSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Slot({})", self.0)
    }
}

/// For each slot, the smallest number that hashes to it, in base 36.
static TAGS: LazyLock<Vec<Box<str>>> = LazyLock::new(|| {
    let mut tags: Vec<Box<str>> = vec![Box::default(); SLOTS];
    let mut missing = SLOTS;
    for number in 0_u32.. {
        if missing == 0 {
            break;
        }
        let text = base36(number);
        let tag = &mut tags[ClusterSlot::of(text.as_bytes()).index()];
        if tag.is_empty() {
            *tag = text.into();
            missing -= 1;
        }
    }
    tags
});

fn base36(mut number: u32) -> String {
    let mut digits = Vec::new();
    loop {
        digits.extend(char::from_digit(number % 36, 36));
        number /= 36;
        if number == 0 {
            return digits.into_iter().rev().collect();
        }
    }
}

/// Returns the part of a key that Redis hashes.
fn hashed_part(name: &[u8]) -> &[u8] {
    tag_of(name).unwrap_or(name)
}

/// Returns the text between the first opening brace and the next closing one, unless it is empty.
pub(super) fn tag_of(name: &[u8]) -> Option<&[u8]> {
    let open = name.iter().position(|&byte| byte == b'{')?;
    let rest = &name[open + 1..];
    let length = rest.iter().position(|&byte| byte == b'}')?;
    (length > 0).then(|| &rest[..length])
}

/// Computes the CRC that Redis hashes with: XMODEM, polynomial 0x1021.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, &byte| (crc << 8) ^ TABLE[usize::from((crc >> 8) as u8 ^ byte)])
}

const TABLE: [u16; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = (byte as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lie_where_redis_puts_them() {
        let at = |name: &str| ClusterSlot::of(name.as_bytes()).0;
        // The check value of the CRC, and replies of CLUSTER KEYSLOT.
        assert_eq!(crc16(b"123456789"), 0x31C3);
        assert_eq!((at("foo"), at("bar"), at("")), (12_182, 5_061, 0));
        assert_eq!(at("sg:{foo}#requests"), at("foo"));
        assert_eq!(at("{foo}{bar}"), at("foo"), "the first braces count");
        assert_ne!(at("{}foo"), at("foo"), "empty braces do not");
        assert_eq!(at("{foo"), crc16(b"{foo") % 16_384);
    }

    #[test]
    fn the_tag_of_a_slot_lies_in_it_and_is_short() {
        for number in 0..SLOTS as u16 {
            let slot = ClusterSlot::new(number).expect("there are more");
            assert_eq!(ClusterSlot::of(slot.tag().as_bytes()), slot);
            assert_eq!(ClusterSlot::of(format!("sg:{{{}}}:id:1", slot.tag()).as_bytes()), slot);
            assert!(slot.tag().len() <= 4, "{}", slot.tag());
        }
        assert_eq!(ClusterSlot::new(16_384), None);
    }
}
