//! Tables of flash of the repository's presets (presets/flash/), as text: who reads presets has the reader.

/// Name and text of each.
pub const TEXTS: [(&str, &str); 4] = [
    ("jasmine", include_str!("../../../presets/flash/jasmine.toml")),
    ("slc", include_str!("../../../presets/flash/slc.toml")),
    ("tlc", include_str!("../../../presets/flash/tlc.toml")),
    ("mqsim", include_str!("../../../presets/flash/mqsim.toml")),
];
