//! Where a pair lives: a keyed 64-bit hash of its key (SipHash with 2 and 4 rounds, Aumasson and Bernstein 2012; the
//! namespace's NGUID is the hash key, so that every host places pairs alike and keys that collide in one namespace do not
//! in another).

use crate::Key;
use key_value_spu::wire;

/// Places the keys of one namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    seed: [u64; 2],
    spus: u16,
}

impl Placement {
    /// For a namespace of that NGUID on a device of that many SPUs (at least 1).
    pub fn new(nguid: [u8; 16], spus: u16) -> Self {
        assert!(spus > 0, "a device has at least one SPU");
        let whole = u128::from_le_bytes(nguid);
        Placement { seed: [whole as u64, (whole >> 64) as u64], spus }
    }

    /// Number of SPUs.
    pub fn spus(&self) -> u16 {
        self.spus
    }

    /// Hash of a key.
    #[inline]
    pub fn hash(&self, key: &Key) -> u64 {
        siphash(self.seed, key.as_bytes())
    }

    /// SPU of a hash.
    #[inline]
    pub fn spu(&self, hash: u64) -> u16 {
        wire::spu_of(hash, self.spus)
    }
}

fn siphash(seed: [u64; 2], message: &[u8]) -> u64 {
    let mut v = [
        seed[0] ^ 0x736f_6d65_7073_6575,
        seed[1] ^ 0x646f_7261_6e64_6f6d,
        seed[0] ^ 0x6c79_6765_6e65_7261,
        seed[1] ^ 0x7465_6462_7974_6573,
    ];
    let mut words = message.chunks_exact(8);
    for word in &mut words {
        let word = u64::from_le_bytes(word.try_into().expect("chunks of 8"));
        v[3] ^= word;
        round(&mut v);
        round(&mut v);
        v[0] ^= word;
    }
    let mut last = (message.len() as u64) << 56;
    for (index, byte) in words.remainder().iter().enumerate() {
        last |= u64::from(*byte) << (8 * index);
    }
    v[3] ^= last;
    round(&mut v);
    round(&mut v);
    v[0] ^= last;
    v[2] ^= 0xff;
    for _ in 0..4 {
        round(&mut v);
    }
    v[0] ^ v[1] ^ v[2] ^ v[3]
}

#[inline]
fn round(v: &mut [u64; 4]) {
    v[0] = v[0].wrapping_add(v[1]);
    v[1] = v[1].rotate_left(13) ^ v[0];
    v[0] = v[0].rotate_left(32);
    v[2] = v[2].wrapping_add(v[3]);
    v[3] = v[3].rotate_left(16) ^ v[2];
    v[0] = v[0].wrapping_add(v[3]);
    v[3] = v[3].rotate_left(21) ^ v[0];
    v[2] = v[2].wrapping_add(v[1]);
    v[1] = v[1].rotate_left(17) ^ v[2];
    v[2] = v[2].rotate_left(32);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The vectors of the paper's reference: key 00..0f, message 00..n-1.
    #[test]
    fn published_vectors() {
        let seed = [0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908];
        let message: Vec<u8> = (0..15).collect();
        assert_eq!(siphash(seed, &message), 0xa129_ca61_49be_45e5);
        assert_eq!(siphash(seed, &[]), 0x726f_db47_dd0e_0e31);
    }

    /// The standard library's deprecated hasher is the same function: agree with it on all lengths.
    #[test]
    #[allow(deprecated)]
    fn agrees_with_the_standard_library() {
        use std::hash::Hasher;
        for length in 1..=16_u8 {
            let message: Vec<u8> = (0..length).map(|byte| byte.wrapping_mul(37)).collect();
            let mut hasher = std::hash::SipHasher::new_with_keys(11, 22);
            hasher.write(&message);
            assert_eq!(siphash([11, 22], &message), hasher.finish());
        }
    }

    #[test]
    fn spus_share_the_keys_in_order() {
        for spus in [1_u16, 2, 3, 7, 8, 64] {
            let placement = Placement::new([9; 16], spus);
            let mut counts = vec![0_u32; usize::from(spus)];
            let mut places: Vec<(u64, u16)> = (0..8192_u32)
                .map(|number| {
                    let hash = placement.hash(&Key::new(&number.to_le_bytes()).unwrap());
                    (hash, placement.spu(hash))
                })
                .collect();
            places.sort();
            assert!(places.windows(2).all(|pair| pair[0].1 <= pair[1].1));
            for (_, spu) in places {
                counts[usize::from(spu)] += 1;
            }
            let expected = 8192 / u32::from(spus);
            assert!(counts.iter().all(|count| *count > expected / 2 && *count < expected * 2), "{counts:?}");
        }
    }
}
