//! Resolves the fields `network` and `counter_per` of a descriptor.
//!
//! Not covered:
//! - Two descriptors with one network (see [`super`]).

use super::findings::{FileFindings, FileSpan};
use crate::diagnostic::{Code, Spanned};
use crate::hooks::address::{Network, NetworkError, parse_prefix_len};
use crate::raw::Descriptor;
use crate::tree::networks::CountedNetwork;

/// A field with an error, which has a finding.
pub(super) struct InvalidNetwork;

pub(super) struct NetworkReader<'r, 'f, 'a> {
    pub(super) file: usize,
    pub(super) raw: &'r Descriptor,
    pub(super) findings: &'f mut FileFindings<'a>,
}

impl NetworkReader<'_, '_, '_> {
    /// Returns the network of the descriptor, if it has one.
    pub(super) fn read(mut self) -> Result<Option<CountedNetwork>, InvalidNetwork> {
        let raw = self.raw;
        let Some(written) = &raw.network else {
            return match &raw.counter_per {
                Some(per) => {
                    let problem = "`counter_per` needs `network`";
                    Err(self.contradiction(per, problem, "add `network: 10.0.0.0/8`, or remove it"))
                }
                None => Ok(None),
            };
        };
        if !raw.value.value.is_empty() {
            let fix = "keep `network` for all its addresses, or `value` for one text";
            return Err(self.contradiction(
                written,
                "`network` and `value` exclude each other",
                fix,
            ));
        }
        if raw.key.value.contains('*') {
            let fix = "write the whole key";
            return Err(self.contradiction(written, "`network` needs a key without `*`", fix));
        }
        let network = self.parse_network(written)?;
        let counter_bits = match &raw.counter_per {
            Some(per) => self.parse_counter(per, network)?,
            None => network.width(),
        };
        Ok(Some(CountedNetwork { network, counter_bits }))
    }

    fn parse_network(&mut self, written: &Spanned<String>) -> Result<Network, InvalidNetwork> {
        let text = &written.value;
        let (problem, fix) = match Network::parse(text) {
            Ok(network) => return Ok(network),
            Err(NetworkError::NoPrefix(address)) => (
                "has no prefix length".to_owned(),
                format!(
                    "write `value: {address}` for one address, or a network such as `10.0.0.0/8`"
                ),
            ),
            Err(NetworkError::BadAddress) => (
                "is no IP network".to_owned(),
                "write an address and a prefix length, such as `10.0.0.0/8`".to_owned(),
            ),
            Err(NetworkError::BadPrefix(width)) => (
                "has an invalid prefix length".to_owned(),
                format!("write a whole number from 0 to {width} after the `/`"),
            ),
            Err(NetworkError::HostBits(network)) => (
                "has bits after the prefix".to_owned(),
                format!("write `{network}`, which contains this address"),
            ),
            Err(NetworkError::Mapped(network)) => (
                "has IPv4-mapped addresses, which count as IPv4".to_owned(),
                format!("write `{network}`"),
            ),
        };
        Err(self.invalid(written, format!("`network: {text}` {problem}"), fix))
    }

    fn parse_counter(
        &mut self,
        written: &Spanned<String>,
        network: Network,
    ) -> Result<u8, InvalidNetwork> {
        let (width, shortest) = (network.width(), network.prefix_len());
        let text = written.value.as_str();
        match text {
            "address" => return Ok(width),
            "network" => return Ok(shortest),
            _ => {}
        }
        let bits = text.strip_prefix('/').and_then(parse_prefix_len);
        if let Some(bits) = bits.filter(|bits| (shortest..=width).contains(bits)) {
            return Ok(bits);
        }
        let problem = match bits {
            Some(bits) if bits < shortest => format!("is larger than the network `{network}`"),
            Some(_) => format!("is longer than the {width} bits of an address in `{network}`"),
            None => "is no prefix length".to_owned(),
        };
        let fix =
            format!("write `address`, `network`, or a prefix from `/{shortest}` to `/{width}`");
        Err(self.invalid(written, format!("`counter_per: {text}` {problem}"), fix))
    }

    fn contradiction(
        &mut self,
        at: &Spanned<String>,
        problem: &str,
        fix: &'static str,
    ) -> InvalidNetwork {
        self.add(Code::Contradiction, at, problem.to_owned(), fix.to_owned())
    }

    fn invalid(&mut self, at: &Spanned<String>, problem: String, fix: String) -> InvalidNetwork {
        self.add(Code::UnknownValue, at, problem, fix)
    }

    fn add(
        &mut self,
        code: Code,
        at: &Spanned<String>,
        problem: String,
        fix: String,
    ) -> InvalidNetwork {
        let at = FileSpan { file: self.file, span: at.span };
        self.findings.add(code, at, problem, fix);
        InvalidNetwork
    }
}
