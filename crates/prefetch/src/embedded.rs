//! Page maps that came with files.

/// Name of the section that holds a page map.
pub const SECTION_NAME: &str = ".prepage";

/// Its type, of the range that the ELF specification leaves to applications (`SHT_LOUSER` to `SHT_HIUSER`): "pre" in ASCII.
pub const SECTION_TYPE: u32 = 0x8070_7265;
