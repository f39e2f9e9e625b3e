//! The public names of the incarnations of replicas.

use siphasher::sip::SipHasher24;

/// Returns the public name of a replica incarnation: 16 hexadecimal digits of a hash. They reveal
/// neither the name of the replica nor the number of the incarnation.
#[must_use]
pub fn incarnation_name(node: &str, incarnation: u64) -> Box<str> {
    let mut bytes = node.as_bytes().to_vec();
    // A separator, because a replica name contains no zero byte.
    bytes.push(0);
    bytes.extend(incarnation.to_be_bytes());
    format!("{:016x}", SipHasher24::new().hash(&bytes)).into()
}

/// Returns `true` if `text` has the format of [`incarnation_name`].
#[must_use]
pub fn is_incarnation_name(text: &str) -> bool {
    text.len() == 16 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_incarnation_has_its_own_opaque_name() {
        let of = incarnation_name("host-1", 1);
        assert!(is_incarnation_name(&of), "{of}");
        let others = [
            incarnation_name("host-1", 2),
            incarnation_name("host-2", 1),
            incarnation_name("host-1\0", 1),
            incarnation_name("", 1),
        ];
        assert!(others.iter().all(|other| *other != of));
        assert_eq!(incarnation_name("host-1", 1), of, "every replica comes to the same");
        for text in ["", "-", "0123456789abcde", "0123456789abcdeF", "0123456789abcdef0"] {
            assert!(!is_incarnation_name(text), "{text}");
        }
    }
}
