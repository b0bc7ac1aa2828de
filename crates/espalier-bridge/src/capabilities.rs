//! The extended attribute with the capabilities of a program, which the kernel looks at itself.

/// Its name.
pub const CAPABILITY: &[u8] = b"security.capability";
/// Bytes of each version that Linux takes.
const BYTES_BY_VERSION: [(u8, usize); 2] = [(2, 20), (3, 24)];

/// True if Linux takes the value for capabilities; any other one is EINVAL, for each caller.
pub fn is_capability(value: &[u8]) -> bool {
    BYTES_BY_VERSION.iter().any(|known| value.get(3) == Some(&known.0) && value.len() == known.1)
}
