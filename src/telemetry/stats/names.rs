//! Replaces the characters that must not appear in names of statistics.

use std::borrow::Cow;

/// Replaces colons, pipes and the dots of IPv4 addresses in the name of a statistic by `_`. All
/// other dots separate parts of the name.
pub(super) fn sanitize(name: &str) -> Cow<'_, str> {
    if !name.contains([':', '|']) && !has_ipv4_address(name.as_bytes()) {
        return Cow::Borrowed(name);
    }
    let mut bytes = name.as_bytes().to_vec();
    let mut at = 0;
    while at < bytes.len() {
        match bytes[at] {
            b':' | b'|' => bytes[at] = b'_',
            _ => {
                if let Some(end) = ipv4_address_end(&bytes, at) {
                    bytes[at..end]
                        .iter_mut()
                        .filter(|byte| **byte == b'.')
                        .for_each(|dot| *dot = b'_');
                    at = end;
                    continue;
                }
            }
        }
        at += 1;
    }
    // `bytes` is still valid UTF-8, because only ASCII was replaced by ASCII.
    Cow::Owned(String::from_utf8_lossy(&bytes).into_owned())
}

fn has_ipv4_address(bytes: &[u8]) -> bool {
    (0..bytes.len()).any(|at| ipv4_address_end(bytes, at).is_some())
}

/// Returns the end of the IPv4 address that starts at the given index: four numbers of one to three
/// digits.
fn ipv4_address_end(bytes: &[u8], mut at: usize) -> Option<usize> {
    for part in 0..4 {
        let digits = bytes[at..].iter().take(3).take_while(|byte| byte.is_ascii_digit()).count();
        if digits == 0 {
            return None;
        }
        at += digits;
        if part < 3 {
            (bytes.get(at) == Some(&b'.')).then_some(())?;
            at += 1;
        }
    }
    Some(at)
}

#[cfg(test)]
mod tests {
    use super::sanitize;

    #[test]
    fn colons_pipes_and_ipv4_dots_become_underscores() {
        for (name, wanted) in [
            ("d.k_v", "d.k_v"),
            ("d.ip_10.0.0.1", "d.ip_10_0_0_1"),
            ("d.ip_10.0.0.1.k2", "d.ip_10_0_0_1.k2"),
            ("d.a:b|c", "d.a_b_c"),
            ("d.v_1.2.3", "d.v_1.2.3"),
            ("d.ü:", "d.ü_"),
        ] {
            assert_eq!(sanitize(name), wanted);
        }
    }
}
