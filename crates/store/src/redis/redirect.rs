//! Parses the errors with which a Cluster redirects a call to another node.
//!
//! Not covered:
//! - Following a redirect (see [`super::connection`]).

use fred::error::Error;

use super::options::Address;

/// The redirect of a call to another node.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Redirect {
    pub(super) target: Address,
    /// True for `ASK`: the target imports the slot and already has the key.
    pub(super) is_ask: bool,
}

impl Redirect {
    /// Parses a `MOVED` or `ASK` error from the node at `host`, which is also the default host.
    pub(super) fn parse(error: &Error, host: &str) -> Option<Self> {
        let mut words = error.details().split(' ');
        let is_ask = match words.next()? {
            "MOVED" => false,
            "ASK" => true,
            _ => return None,
        };
        let (name, port) = words.nth(1)?.rsplit_once(':')?;
        let name = if matches!(name, "" | "?") { host } else { name };
        let target = Address { host: name.to_owned(), port: port.parse().ok()? };
        Some(Self { target, is_ask })
    }
}

#[cfg(test)]
mod tests {
    use fred::error::{Error, ErrorKind};

    use super::{Address, Redirect};

    #[test]
    fn moved_and_ask_errors_parse_as_redirects() {
        let parse_redirect = |text: &'static str| {
            Redirect::parse(&Error::new(ErrorKind::Cluster, text), "redis-1.local")
        };
        let to = |host: &str, port, is_ask| {
            Some(Redirect { target: Address { host: host.to_owned(), port }, is_ask })
        };
        assert_eq!(parse_redirect("MOVED 3999 127.0.0.1:6381"), to("127.0.0.1", 6381, false));
        assert_eq!(parse_redirect("ASK 3999 redis-2.local:6381"), to("redis-2.local", 6381, true));
        assert_eq!(parse_redirect("MOVED 3999 ::1:6381"), to("::1", 6381, false));
        // In a redirect, an empty host or `?` means the host of the node that sent it.
        assert_eq!(parse_redirect("MOVED 3999 :6381"), to("redis-1.local", 6381, false));
        assert_eq!(parse_redirect("ASK 3999 ?:6381"), to("redis-1.local", 6381, true));
        for other in
            ["", "MOVED", "MOVED 1", "MOVED 1 x", "MOVED 1 x:y", "TRYAGAIN x y:1", "ASKING"]
        {
            assert_eq!(parse_redirect(other), None, "{other}");
        }
    }
}
