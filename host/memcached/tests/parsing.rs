//! Parsers against whatever comes.

use proptest::prelude::*;
use willow_memcached::testing::check_stream;

fn words() -> impl Strategy<Value = Vec<u8>> {
    let word = prop_oneof![
        Just(b"get".to_vec()),
        Just(b"gats".to_vec()),
        Just(b"set k 1 2 3\r\nabc\r\n".to_vec()),
        Just(b"cas k 1 2 3 4\r\nabc\r\n".to_vec()),
        Just(b"append".to_vec()),
        Just(b"incr k 5".to_vec()),
        Just(b"flush_all".to_vec()),
        Just(b"ms k 3 T5 MA\r\n".to_vec()),
        Just(b"mg k v t O1 b".to_vec()),
        Just(b"ma k N0 J5 D2".to_vec()),
        Just(b"noreply".to_vec()),
        Just(b" ".to_vec()),
        Just(b"\r\n".to_vec()),
        Just(b"\n".to_vec()),
        "[0-9]{1,21}".prop_map(String::into_bytes),
        "-[0-9]{1,3}".prop_map(String::into_bytes),
        "[a-z]{1,255}".prop_map(String::into_bytes),
        proptest::collection::vec(any::<u8>(), 0..9),
    ];
    proptest::collection::vec(word, 0..24).prop_map(|words| words.concat())
}

fn binary() -> impl Strategy<Value = Vec<u8>> {
    let request = (0_u8..0x26, 0_u8..24, 0_u16..260, 0_u32..300, any::<bool>()).prop_map(
        |(opcode, extras, key, value, honest)| {
            let mut head = [0_u8; 24];
            (head[0], head[1], head[4]) = (0x80, opcode, extras);
            head[2..4].copy_from_slice(&key.to_be_bytes());
            let body = if honest { u32::from(extras) + u32::from(key) + value } else { value };
            head[8..12].copy_from_slice(&body.to_be_bytes());
            [&head[..], &vec![b'x'; body as usize]].concat()
        },
    );
    proptest::collection::vec(request, 0..6).prop_map(|requests| requests.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn text_is_understood_alike_in_any_pieces(cut in any::<u8>(), stream in words()) {
        check_stream(&[&[cut], &stream[..]].concat());
    }

    #[test]
    fn binary_is_understood_alike_in_any_pieces(cut in any::<u8>(), stream in binary()) {
        check_stream(&[&[cut], &stream[..]].concat());
    }

    #[test]
    fn any_bytes_are_understood_alike_in_any_pieces(stream in proptest::collection::vec(any::<u8>(), 0..200)) {
        check_stream(&stream);
    }
}
