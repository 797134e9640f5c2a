//! The keys of a range: one SCAN call after the other, SPU 0 first. Keys come in the order of listings, which is that of their hashes.

use crate::{Call, Key, ListKeys, Placement};
use key_value_spu::wire::{Bound, ScanArguments, ScanHead, handler};

/// An RPC of a scan.
pub type ScanCall = Call<{ ScanArguments::BYTES }>;

/// What to do next in a scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScanStep {
    /// Send this call with a buffer for its reply, and hand that to [`KeyScan::answered`].
    Call(ScanCall),
    /// That was all.
    Done,
}

/// A scan over all SPUs.
#[derive(Clone, Copy, Debug)]
pub struct KeyScan {
    placement: Placement,
    arguments: ScanArguments,
    spu: u16,
}

fn bound(key: Option<&Key>) -> Bound {
    key.map_or(Bound::default(), |key| Bound { key: key.bytes, key_bytes: key.length })
}

impl KeyScan {
    /// Keys from `from` on, up to `to` without it; `None`: no bound.
    pub fn start(placement: Placement, nsid: u32, from: Option<&Key>, to: Option<&Key>) -> (Self, ScanStep) {
        let arguments = ScanArguments { nsid, from: bound(from), to: bound(to), ..ScanArguments::default() };
        let scan = KeyScan { placement, arguments, spu: 0 };
        (scan, ScanStep::Call(scan.call()))
    }

    fn call(&self) -> ScanCall {
        Call { handler: handler::SCAN, spu: self.spu, arguments: self.arguments.encode() }
    }

    /// Takes the reply to the last call (its status was 0): the keys in it, and what is next; `None` where it makes no sense.
    pub fn answered(&mut self, reply: &[u8]) -> Option<(Vec<Key>, ScanStep)> {
        let (head, entries) = reply.split_first_chunk::<{ ScanHead::BYTES }>()?;
        let head = ScanHead::decode(head)?;
        let keys = ListKeys::of_entries(entries).collect();
        let before = (self.arguments.hash, self.arguments.at.key, self.arguments.at.key_bytes);
        if head.more {
            // Without progress it would never end.
            if (head.hash, head.at.key, head.at.key_bytes) <= before {
                return None;
            }
            (self.arguments.hash, self.arguments.at) = (head.hash, head.at);
        } else {
            self.spu += 1;
            (self.arguments.hash, self.arguments.at) = (0, Bound::default());
            if self.spu >= self.placement.spus() {
                return Some((keys, ScanStep::Done));
            }
        }
        Some((keys, ScanStep::Call(self.call())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goes_over_all_spus_and_ends() {
        let (mut scan, step) = KeyScan::start(Placement::new([1; 16], 2), 5, None, Some(&Key::new(b"z").unwrap()));
        let ScanStep::Call(call) = step else { panic!("a call") };
        assert_eq!(call.spu, 0);
        let at = Bound { key: [3; 16], key_bytes: 16 };
        let mut reply = ScanHead { more: true, hash: 9, at }.encode().to_vec();
        reply.extend([1, 0, b'a', 0]);
        let (keys, step) = scan.answered(&reply).unwrap();
        assert_eq!(keys, [Key::new(b"a").unwrap()]);
        let ScanStep::Call(call) = step else { panic!("a call") };
        let arguments = ScanArguments::decode(&call.arguments).unwrap();
        assert_eq!((call.spu, arguments.hash, arguments.at), (0, 9, at));
        assert_eq!(scan.answered(&reply), None, "no progress");
        let end = ScanHead::default().encode();
        let (keys, step) = scan.answered(&end).unwrap();
        let ScanStep::Call(call) = step else { panic!("a call") };
        assert_eq!((keys.len(), call.spu), (0, 1));
        assert_eq!(scan.answered(&end).unwrap().1, ScanStep::Done);
        assert_eq!(scan.answered(&end[..31]), None);
    }
}
