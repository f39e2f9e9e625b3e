//! Replaces the characters that must not appear in names of statistics.

use std::borrow::Cow;

/// Replaces colons, pipes and the dots of IPv4 addresses in the name of a statistic by `_`.
pub(super) fn sanitize(name: &str) -> Cow<'_, str> {
    if !name.contains([':', '|']) && !has_ipv4_address(name.as_bytes()) {
        return Cow::Borrowed(name);
    }
    let mut bytes = name.as_bytes().to_vec();
    let mut position = 0;
    while position < bytes.len() {
        if matches!(bytes[position], b':' | b'|') {
            bytes[position] = b'_';
        } else if let Some(end) = ipv4_address_end(&bytes, position) {
            let dots = bytes[position..end].iter_mut().filter(|byte| **byte == b'.');
            dots.for_each(|dot| *dot = b'_');
            position = end;
            continue;
        }
        position += 1;
    }
    // `bytes` is still valid UTF-8, because only ASCII was replaced by ASCII.
    Cow::Owned(String::from_utf8_lossy(&bytes).into_owned())
}

fn has_ipv4_address(bytes: &[u8]) -> bool {
    (0..bytes.len()).any(|start| ipv4_address_end(bytes, start).is_some())
}

/// Returns the end of the IPv4 address that starts at `position`.
fn ipv4_address_end(bytes: &[u8], mut position: usize) -> Option<usize> {
    for part in 0..4 {
        let digits =
            bytes[position..].iter().take(3).take_while(|byte| byte.is_ascii_digit()).count();
        if digits == 0 {
            return None;
        }
        position += digits;
        if part < 3 {
            (bytes.get(position) == Some(&b'.')).then_some(())?;
            position += 1;
        }
    }
    Some(position)
}

#[cfg(test)]
mod tests {
    use super::sanitize;

    #[test]
    fn colons_pipes_and_ipv4_dots_become_underscores() {
        for (name, expected) in [
            ("d.k_v", "d.k_v"),
            ("d.ip_10.0.0.1", "d.ip_10_0_0_1"),
            ("d.ip_10.0.0.1.k2", "d.ip_10_0_0_1.k2"),
            ("d.a:b|c", "d.a_b_c"),
            ("d.v_1.2.3", "d.v_1.2.3"),
            ("d.ü:", "d.ü_"),
        ] {
            assert_eq!(sanitize(name), expected);
        }
    }
}
