//! What a ClientHello offers by pre-shared keys (RFC 8446, 4.1.2 and 4.2.11).
//!
//! What always holds: any bytes are safe to be read; at most [`OFFERS_MAX`] offers are looked at.

/// Most offers of a host that are looked at; Linux sends one.
pub const OFFERS_MAX: usize = 8;
const PRE_SHARED_KEY: u16 = 41;

/// One pre-shared key that is offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer<'a> {
    /// Its name.
    pub identity: &'a [u8],
    /// The proof that the client has it.
    pub binder: &'a [u8],
}

/// All that are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offers<'a> {
    /// In the client's order.
    pub offers: Vec<Offer<'a>>,
    /// Up to where the binders prove the message: what is before them.
    pub proved: &'a [u8],
}

/// Bytes that are read from the front.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }
    fn byte(&mut self) -> Option<usize> {
        self.take(1).map(|byte| usize::from(byte[0]))
    }
    fn two(&mut self) -> Option<usize> {
        self.take(2).map(|bytes| usize::from(u16::from_be_bytes([bytes[0], bytes[1]])))
    }
    fn short(&mut self) -> Option<&'a [u8]> {
        let count = self.byte()?;
        self.take(count)
    }
    fn long(&mut self) -> Option<&'a [u8]> {
        let count = self.two()?;
        self.take(count)
    }
}

impl<'a> Offers<'a> {
    /// Reads a whole ClientHello, with its header of 4 bytes; `None` where it offers no pre-shared key or is none.
    pub fn parse(message: &'a [u8]) -> Option<Self> {
        let mut hello = Reader(message);
        // Type and length, version, random.
        hello.take(4 + 2 + 32)?;
        // Session, cipher suites, compression.
        hello.short()?;
        hello.long()?;
        hello.short()?;
        let mut extensions = Reader(hello.long()?);
        if !hello.0.is_empty() {
            return None;
        }
        while !extensions.0.is_empty() {
            let (kind, body) = (extensions.two()?, extensions.long()?);
            if kind == usize::from(PRE_SHARED_KEY) {
                // It is the last extension (4.2.11), so that what is before the binders ends with it.
                return extensions.0.is_empty().then(|| Self::of_extension(message, body))?;
            }
        }
        None
    }

    fn of_extension(message: &'a [u8], body: &'a [u8]) -> Option<Self> {
        let mut body = Reader(body);
        let mut identities = Reader(body.long()?);
        let proved = &message[..message.len() - body.0.len()];
        let mut binders = Reader(body.long()?);
        let mut offers = Vec::new();
        while !identities.0.is_empty() && offers.len() < OFFERS_MAX {
            let identity = identities.long()?;
            // The age of a ticket; these are none.
            identities.take(4)?;
            offers.push(Offer { identity, binder: binders.short()? });
        }
        body.0.is_empty().then_some(Offers { offers, proved })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn hello(extensions: &[u8]) -> Vec<u8> {
        let mut message = vec![1, 0, 0, 0, 3, 3];
        message.extend_from_slice(&[7; 32]);
        message.extend_from_slice(&[0, 0, 2, 0x13, 1, 1, 0]);
        message.extend_from_slice(&(extensions.len() as u16).to_be_bytes());
        message.extend_from_slice(extensions);
        message
    }

    /// Versions, then pre-shared keys: one identity and its binder.
    const ONE: &[u8] = &[0, 43, 0, 3, 2, 3, 4, 0, 41, 0, 15, 0, 8, 0, 2, b'm', b'e', 0, 0, 0, 0, 0, 3, 2, 8, 9];
    /// Pre-shared keys: two identities, and a binder for the first alone.
    const TWO: &[u8] = &[0, 41, 0, 22, 0, 15, 0, 2, b'm', b'e', 0, 0, 0, 0, 0, 1, b'y', 0, 0, 0, 0, 0, 3, 2, 8, 9];

    #[test]
    fn offers_are_found_with_what_they_prove() {
        let message = hello(ONE);
        let offers = Offers::parse(&message).unwrap();
        assert_eq!(offers.offers, [Offer { identity: b"me", binder: &[8, 9] }]);
        // All before the binders and their length.
        assert_eq!(offers.proved.len(), message.len() - 5);
        for length in 0..message.len() {
            assert_eq!(Offers::parse(&message[..length]), None, "cut at {length}");
        }
        assert_eq!(Offers::parse(&hello(TWO)), None, "an identity without a proof");
        assert_eq!(Offers::parse(&hello(&ONE[..7])), None, "no pre-shared key");
    }

    proptest! {
        #[test]
        fn any_bytes_can_be_read(bytes in proptest::collection::vec(any::<u8>(), 0..600), at in 0usize..64, byte: u8) {
            let _ = Offers::parse(&bytes);
            let _ = Offers::parse(&hello(&bytes));
            let mut message = hello(ONE);
            let place = message.len() - 1 - at % message.len();
            message[place] = byte;
            if let Some(offers) = Offers::parse(&message) {
                prop_assert!(offers.offers.len() <= OFFERS_MAX && offers.proved.len() < message.len());
            }
        }
    }
}
