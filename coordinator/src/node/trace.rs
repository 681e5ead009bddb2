//! W3C Trace Context: the node copies a request's trace id into its log lines and audit records. The node
//! creates no spans and samples nothing.

use std::fmt;

pub const HEADER: &str = "traceparent";
/// Bytes of `00-<trace id>-<parent id>-<flags>`.
const SIZE: usize = 55;

/// Valid value of a `traceparent` header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceParent(String);

impl TraceParent {
    /// Parses a header. `None`: an invalid header, ignored according to the standard. For a later version
    /// only the fields of version 00 are read.
    pub fn parse(header: &str) -> Option<TraceParent> {
        let (known, rest) = header.split_at_checked(SIZE)?;
        let is_hex = |text: &str| text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        let fields: Vec<&str> = known.split('-').collect();
        let [version, trace, parent, flags] = fields[..] else { return None };
        let sizes = (version.len(), trace.len(), parent.len(), flags.len());
        let is_zero = |text: &str| text.bytes().all(|byte| byte == b'0');
        let is_good = sizes == (2, 32, 16, 2)
            && fields.iter().all(|field| is_hex(field))
            && !is_zero(trace)
            && !is_zero(parent)
            && version != "ff"
            && (rest.is_empty() || (version != "00" && rest.starts_with('-')));
        is_good.then(|| TraceParent(known.to_owned()))
    }
}

impl fmt::Display for TraceParent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn later_version_keeps_only_the_known_fields() {
        assert_eq!(TraceParent::parse(GOOD).unwrap().to_string(), GOOD);
        let later = format!("cc{}-more.to-come", &GOOD[2..]);
        assert_eq!(TraceParent::parse(&later).unwrap().to_string(), later[..SIZE]);
    }

    #[test]
    fn invalid_headers_are_ignored() {
        let zero_trace = format!("00-{}-00f067aa0ba902b7-01", "0".repeat(32));
        let zero_parent = format!("00-4bf92f3577b34da6a3ce929d0e0e4736-{}-01", "0".repeat(16));
        let (upper, ff) = (GOOD.to_uppercase(), format!("ff{}", &GOOD[2..]));
        let longer = format!("{GOOD}-00");
        let shifted = "0-04bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let bad = ["", "00", &GOOD[..54], &zero_trace, &zero_parent, &upper, &ff, &longer, shifted];
        for header in bad.into_iter().chain(["é".repeat(40).as_str()]) {
            assert_eq!(TraceParent::parse(header), None, "{header}");
        }
    }
}
