//! Writes the text of a key: its entries as `key=value,key2=value2`.
//!
//! Guarantees:
//! - A text has at most [`MAX_TEXT_BYTES`] bytes.
//! - Equal descriptors have equal texts in all replicas of one version.
//! - Texts with clear values can be parsed ([`crate::config::descriptor_text`]).
//!
//! Not covered:
//! - Secrecy of hashed values: the hash has no secret, so guesses can be tested.

use std::fmt::Write as _;
use std::hash::Hasher as _;

use siphasher::sip::SipHasher24;

use crate::config::descriptor_text::format_entries;
use crate::config::settings::DescriptorValues;

/// The largest size of a key's text in bytes. In a longer text, all values are hashed.
pub const MAX_TEXT_BYTES: usize = 256;

/// The keys of one descriptor list, as pairs.
pub(super) type Entries<'e> = &'e [(&'e str, &'e str)];

/// Returns the text of the key. Values are hashed with `Hashed`, or if the text would be too
/// long. The text of a key whose names are too long, too, is one hash.
pub(super) fn key_text(entries: Entries<'_>, values: DescriptorValues) -> Box<str> {
    if values == DescriptorValues::Shown {
        // Escaping needs at most one more byte for each byte, so only short texts are written.
        let length = entries.iter().map(|(key, value)| key.len() + value.len() + 2).sum::<usize>();
        if length <= MAX_TEXT_BYTES {
            let text = format_entries(entries.iter().copied());
            if text.len() <= MAX_TEXT_BYTES {
                return text.into();
            }
        }
    }
    hashed_text(entries)
}

fn hashed_text(entries: Entries<'_>) -> Box<str> {
    let hashed: Vec<_> =
        entries.iter().map(|(key, value)| (*key, hash_text(&[value.as_bytes()]))).collect();
    let text = format_entries(hashed.iter().map(|(key, value)| (*key, &**value)));
    if text.len() <= MAX_TEXT_BYTES {
        return text.into();
    }
    let parts: Vec<_> =
        entries.iter().flat_map(|(key, value)| [key.as_bytes(), value.as_bytes()]).collect();
    hash_text(&parts).into()
}

/// Returns `~` and 16 hexadecimal digits: the unkeyed SipHash-2-4 of the parts, each with its
/// length.
pub(crate) fn hash_text(parts: &[&[u8]]) -> String {
    let mut hasher = SipHasher24::new();
    for part in parts {
        hasher.write_usize(part.len());
        hasher.write(part);
    }
    let mut text = String::with_capacity(17);
    let _infallible = write!(text, "~{:016x}", hasher.finish());
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clear_text_can_be_parsed() {
        let entries = [("api_key", "a,b"), ("path", "/x=y")];
        let text = key_text(&entries, DescriptorValues::Shown);
        assert_eq!(&*text, r"api_key=a\,b,path=/x=y");
        let parsed = crate::config::descriptor_text::parse_entries(&text).unwrap();
        assert_eq!(crate::config::descriptor_text::borrow_entries(&parsed), entries);
    }

    #[test]
    fn a_hashed_text_hides_values_and_keeps_names() {
        let text = key_text(&[("api_key", "partner")], DescriptorValues::Hashed);
        let hash = text.strip_prefix("api_key=~").unwrap();
        assert_eq!(hash.len(), 16);
        assert!(hash.bytes().all(|digit| digit.is_ascii_hexdigit()));
        assert_ne!(text, key_text(&[("api_key", "other")], DescriptorValues::Hashed));
    }

    #[test]
    fn a_long_text_is_hashed() {
        let long = "v".repeat(MAX_TEXT_BYTES);
        let text = key_text(&[("k", &long)], DescriptorValues::Shown);
        assert!(text.starts_with("k=~") && text.len() == 19, "{text}");
        let text = key_text(&[(&long, "v")], DescriptorValues::Shown);
        assert!(text.starts_with('~') && text.len() == 17, "{text}");
        let commas = ",".repeat(MAX_TEXT_BYTES / 2 + 10);
        assert_eq!(key_text(&[("k", &commas)], DescriptorValues::Shown).len(), 19);
    }
}
