//! Values of a stopped frame as text.

use super::variables::{Place, Reading, Variable};
use willow_host::control::GlobalValue;
use willow_wire::control::FrameValues;

/// Bytes of a value that are shown.
const BYTES_SHOWN: u64 = 16;

/// A value of WebAssembly: its number, and how it is as an address or bits.
pub fn of_wasm(value: &GlobalValue) -> String {
    let bits = u128::from_str_radix(&value.bits, 16).unwrap_or(0);
    match value.kind.as_str() {
        "i32" => format!("{} (0x{:x})", bits as u32 as i32, bits as u32),
        "i64" => format!("{} (0x{:x})", bits as u64 as i64, bits as u64),
        "f32" => f32::from_bits(bits as u32).to_string(),
        "f64" => f64::from_bits(bits as u64).to_string(),
        "v128" => format!("0x{bits:032x}"),
        _ => "a reference".to_owned(),
    }
}

fn bits(value: &GlobalValue) -> Vec<u8> {
    u128::from_str_radix(&value.bits, 16).unwrap_or(0).to_le_bytes().to_vec()
}

/// What lies at an address of the app's memory.
pub type Memory<'a> = &'a mut dyn FnMut(u32, u32) -> Option<Vec<u8>>;

/// The value of a variable of the source; and its address, where it has one.
pub fn of_source(variable: &Variable, values: &FrameValues, memory: Memory<'_>) -> (String, Option<u32>) {
    let count = if variable.bytes == 0 { 4 } else { variable.bytes.min(BYTES_SHOWN) } as usize;
    let of = |list: &[GlobalValue], index: u32| list.get(index as usize).map(bits);
    let (bytes, address) = match variable.place {
        Place::Local(index) => (of(&values.locals, index), None),
        Place::Global(index) => (of(&values.globals, index), None),
        Place::Operand(index) => (of(&values.operands, index), None),
        Place::Beside { local, offset } => {
            let base =
                of(&values.locals, local).and_then(|bytes| bytes.first_chunk().map(|word| u32::from_le_bytes(*word)));
            let address = base.map(|base| base.wrapping_add(offset as u32));
            (address.and_then(|address| memory(address, count as u32)), address)
        }
        Place::Nowhere => (None, None),
    };
    let Some(bytes) = bytes.filter(|bytes| bytes.len() >= count) else {
        return ("the compiler has not kept it".to_owned(), address);
    };
    (read(variable.reading, &bytes[..count], variable.bytes), address)
}

fn read(reading: Reading, bytes: &[u8], whole: u64) -> String {
    let mut wide = [0; 16];
    wide[..bytes.len()].copy_from_slice(bytes);
    let unsigned = u128::from_le_bytes(wide);
    let bits = 8 * bytes.len() as u32;
    match reading {
        Reading::Unsigned => unsigned.to_string(),
        Reading::Signed => ((unsigned << (128 - bits)) as i128 >> (128 - bits)).to_string(),
        Reading::Boolean => (unsigned != 0).to_string(),
        Reading::Pointer => format!("0x{unsigned:x}"),
        Reading::Float if bytes.len() == 4 => f32::from_bits(unsigned as u32).to_string(),
        Reading::Float => f64::from_bits(unsigned as u64).to_string(),
        Reading::Bytes => {
            let digits: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            let more = if whole > bytes.len() as u64 { format!(" .. ({whole} bytes)") } else { String::new() };
            format!("{}{more}", digits.join(" "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_by_their_type() {
        assert_eq!(read(Reading::Signed, &[0xfe, 0xff], 2), "-2");
        assert_eq!(read(Reading::Unsigned, &[0xfe, 0xff], 2), "65534");
        assert_eq!(read(Reading::Signed, &[0xff; 16], 16), "-1");
        assert_eq!(read(Reading::Float, &1.5f64.to_le_bytes(), 8), "1.5");
        assert_eq!(read(Reading::Bytes, &[1, 2], 40), "01 02 .. (40 bytes)");
        let value = |kind: &str, bits: &str| GlobalValue { kind: kind.into(), mutable: true, bits: bits.into() };
        assert_eq!(of_wasm(&value("i32", "ffffffff")), "-1 (0xffffffff)");
        let values = FrameValues { locals: vec![value("i32", "1000")], ..FrameValues::default() };
        let variable =
            |place| Variable { name: "n".into(), type_name: "u32".into(), bytes: 4, reading: Reading::Unsigned, place };
        let mut asked = Vec::new();
        let mut memory = |address, bytes| {
            asked.push((address, bytes));
            Some(vec![7, 0, 0, 0])
        };
        let beside = variable(Place::Beside { local: 0, offset: -8 });
        assert_eq!(of_source(&beside, &values, &mut memory), ("7".to_owned(), Some(0xff8)));
        assert_eq!(asked, [(0xff8, 4)]);
        for place in [Place::Nowhere, Place::Local(9)] {
            assert!(of_source(&variable(place), &values, &mut |_, _| None).0.contains("not kept"));
        }
    }
}
