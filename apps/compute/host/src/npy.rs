//! The headers of numpy's `.npy` files (format 1.0 to 3.0 as numpy documents it): a magic word, a version, a length, and a literal of Python with the
//! keys `descr`, `fortran_order` and `shape`.
//!
//! What always holds: a header that is read has at most [`HEADER_BYTES_MAX`] bytes and a shape whose product fits; what is written is read again as the
//! same.

use crate::Element;

/// What every such file begins with.
pub const MAGIC: &[u8; 6] = b"\x93NUMPY";
/// Most bytes of a header, with all before the data.
pub const HEADER_BYTES_MAX: usize = 64 << 10;
/// Most dimensions of an array.
pub const DIMENSIONS_MAX: usize = 32;
/// Data begin at a multiple of this.
const ALIGNMENT: usize = 64;

/// An array, as a file's header says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Array {
    /// What its elements are.
    pub element: Element,
    /// The first dimension changes fastest.
    pub fortran_order: bool,
    /// Its shape; none for a single number.
    pub shape: Vec<u64>,
}

/// Why a header is none that can be worked with.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NpyError {
    /// It is none.
    #[error("it is no .npy file (for plain numbers give --dtype)")]
    NoNpy,
    /// It is cut off, too long, or not as numpy writes it.
    #[error("its .npy header is damaged: {0}")]
    Damaged(&'static str),
    /// The type of its elements.
    #[error(
        "its elements are {0:?}: only little-endian f4, f8, c8 and c16 are worked on (numpy.save(file, array.astype('<f8')) converts)"
    )]
    Element(String),
}

impl Array {
    /// How many elements it has.
    pub fn elements(&self) -> u64 {
        self.shape.iter().product()
    }

    /// Bytes of its elements.
    pub fn bytes(&self) -> u64 {
        self.elements() * self.element.bytes()
    }

    /// The header of a file with it, and where its data begin: at the header's end.
    pub fn header(&self) -> Vec<u8> {
        let order = if self.fortran_order { "True" } else { "False" };
        let shape: String = match &self.shape[..] {
            [one] => format!("({one},)"),
            all => format!("({})", all.iter().map(u64::to_string).collect::<Vec<_>>().join(", ")),
        };
        let mut text = format!("{{'descr': '<{}', 'fortran_order': {order}, 'shape': {shape}, }}", self.element);
        let bare = MAGIC.len() + 4 + text.len() + 1;
        text.extend(std::iter::repeat_n(' ', bare.next_multiple_of(ALIGNMENT) - bare));
        text.push('\n');
        let mut header = MAGIC.to_vec();
        header.extend([1, 0]);
        header.extend((text.len() as u16).to_le_bytes());
        header.extend(text.as_bytes());
        header
    }

    /// Reads a header from a file's first bytes, as many as there are up to [`HEADER_BYTES_MAX`]; where the data begin.
    pub fn read(head: &[u8]) -> Result<(Array, u64), NpyError> {
        let rest = head.strip_prefix(MAGIC).ok_or(NpyError::NoNpy)?;
        let cut = NpyError::Damaged("it is cut off");
        let (begin, length) = match rest.first().ok_or(cut.clone())? {
            1 => (10, rest.get(2..4).map(|it| u32::from(u16::from_le_bytes([it[0], it[1]])))),
            2 | 3 => (12, rest.get(2..6).map(|it| u32::from_le_bytes([it[0], it[1], it[2], it[3]]))),
            _ => return Err(NpyError::Damaged("its version is not known")),
        };
        let end = begin + length.ok_or(cut.clone())? as usize;
        if end > HEADER_BYTES_MAX {
            return Err(NpyError::Damaged("it is too long"));
        }
        let text = head.get(begin..end).ok_or(cut)?;
        let text = std::str::from_utf8(text).map_err(|_| NpyError::Damaged("it is no text"))?;
        Ok((Literal(text).array()?, end as u64))
    }
}

/// The text of a header that is still to be read.
struct Literal<'a>(&'a str);

impl<'a> Literal<'a> {
    fn take(&mut self, token: &str) -> bool {
        self.0 = self.0.trim_start();
        self.0.strip_prefix(token).map(|rest| self.0 = rest).is_some()
    }

    fn expect(&mut self, token: &'static str, what: &'static str) -> Result<(), NpyError> {
        if self.take(token) { Ok(()) } else { Err(NpyError::Damaged(what)) }
    }

    fn string(&mut self) -> Result<&'a str, NpyError> {
        let broken = NpyError::Damaged("a name or a type is missing");
        let quote = if self.take("'") {
            '\''
        } else if self.take("\"") {
            '"'
        } else {
            return Err(broken);
        };
        let (text, rest) = self.0.split_once(quote).ok_or(broken)?;
        self.0 = rest;
        Ok(text)
    }

    fn shape(&mut self) -> Result<Vec<u64>, NpyError> {
        let broken = NpyError::Damaged("its shape is none");
        self.expect("(", "its shape is none")?;
        let (mut shape, mut product) = (Vec::new(), 1u64);
        while !self.take(")") {
            let digits = self.0.find(|of: char| !of.is_ascii_digit()).unwrap_or(self.0.len());
            let size: u64 = self.0[..digits].parse().map_err(|_| broken.clone())?;
            self.0 = &self.0[digits..];
            // A long of Python 2.
            self.take("L");
            // Of 16 bytes at most each, with room for a header.
            product = product.checked_mul(size).filter(|all| *all <= u64::MAX / 64).ok_or(broken.clone())?;
            shape.push(size);
            if shape.len() > DIMENSIONS_MAX || !(self.take(",") || self.0.trim_start().starts_with(')')) {
                return Err(broken);
            }
            self.0 = self.0.trim_start();
        }
        Ok(shape)
    }

    fn array(mut self) -> Result<Array, NpyError> {
        let (mut element, mut fortran_order, mut shape) = (None, None, None);
        self.expect("{", "it is no dictionary")?;
        while !self.take("}") {
            let key = self.string()?;
            self.expect(":", "a value is missing")?;
            match key {
                "descr" => {
                    if self.0.trim_start().starts_with('[') {
                        return Err(NpyError::Element("of several fields".to_owned()));
                    }
                    let name = self.string()?;
                    let found = name.strip_prefix('<').and_then(Element::of_name);
                    element = Some(found.ok_or_else(|| NpyError::Element(name.chars().take(40).collect()))?);
                }
                "fortran_order" => {
                    fortran_order = match (self.take("True"), self.take("False")) {
                        (true, _) => Some(true),
                        (_, true) => Some(false),
                        _ => return Err(NpyError::Damaged("its order is neither True nor False")),
                    };
                }
                "shape" => shape = Some(self.shape()?),
                _ => return Err(NpyError::Damaged("it has a key that is not known")),
            }
            if !self.take(",") && !self.0.trim_start().starts_with('}') {
                return Err(NpyError::Damaged("a comma is missing"));
            }
        }
        let missing = NpyError::Damaged("a key is missing");
        match (element, fortran_order, shape) {
            (Some(element), Some(fortran_order), Some(shape)) => Ok(Array { element, fortran_order, shape }),
            _ => Err(missing),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str) -> Vec<u8> {
        [&MAGIC[..], &[1, 0], &(text.len() as u16).to_le_bytes(), text.as_bytes()].concat()
    }

    #[test]
    fn what_is_written_is_read_again() {
        for element in Element::ALL {
            for (fortran_order, shape) in
                [(false, vec![]), (true, vec![7]), (false, vec![3, 1 << 30]), (true, vec![0, 2, 5])]
            {
                let array = Array { element, fortran_order, shape };
                let header = array.header();
                assert!(header.len().is_multiple_of(ALIGNMENT) && header.ends_with(b"\n"));
                assert_eq!(Array::read(&header), Ok((array.clone(), header.len() as u64)));
                for cut in 0..header.len() {
                    assert!(Array::read(&header[..cut]).is_err());
                }
            }
        }
    }

    #[test]
    fn headers_of_numpy_are_read_and_nonsense_is_refused() {
        // As numpy 1 and 2 write them.
        let one = "{'descr': '<f8', 'fortran_order': False, 'shape': (3,), }                                                          \n";
        let (array, at) = Array::read(&file(one)).expect("numpy's");
        assert_eq!((array.element.name(), &array.shape[..], at), ("f8", &[3][..], 10 + one.len() as u64));
        for (text, word) in [
            ("{'descr': '>f8', 'fortran_order': False, 'shape': (3,), }", "elements"),
            ("{'descr': '<i4', 'fortran_order': False, 'shape': (3,), }", "elements"),
            ("{'descr': [('a', '<f8')], 'fortran_order': False, 'shape': (3,), }", "elements"),
            ("{'descr': '<f8', 'fortran_order': Maybe, 'shape': (3,), }", "order"),
            ("{'descr': '<f8', 'fortran_order': False, 'shape': (3, }", "shape"),
            ("{'descr': '<f8', 'fortran_order': False, 'shape': (-3,), }", "shape"),
            ("{'descr': '<f8', 'fortran_order': False, 'shape': (4294967296, 4294967296), }", "shape"),
            ("{'descr': '<f8', 'fortran_order': False, }", "missing"),
            ("{'descr': '<f8' 'fortran_order': False}", "comma"),
            ("{", "name"),
            ("", "dictionary"),
        ] {
            let error = Array::read(&file(text)).expect_err(text).to_string();
            assert!(error.contains(word), "{text}: {error}");
        }
        assert_eq!(Array::read(b"PK"), Err(NpyError::NoNpy));
    }
}
