//! W3C Trace Context, as far as a node needs it: it names the trace of a request in its own log lines and
//! audit records. It makes no spans and samples nothing.

use std::fmt;

pub const HEADER: &str = "traceparent";
/// Bytes of `00-<trace id>-<parent id>-<flags>`.
const SIZE: usize = 55;

/// The value of a `traceparent` that is as the standard has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceParent(String);

impl TraceParent {
    /// Reads a header. `None`: it is not to be believed, and to be ignored. Of a version to come only the
    /// fields count that this one has.
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
    fn a_header_of_this_version_is_kept_as_it_is_and_of_a_later_one_what_is_known() {
        assert_eq!(TraceParent::parse(GOOD).unwrap().to_string(), GOOD);
        let later = format!("cc{}-more.to-come", &GOOD[2..]);
        assert_eq!(TraceParent::parse(&later).unwrap().to_string(), later[..SIZE]);
    }

    #[test]
    fn what_the_standard_does_not_allow_is_ignored() {
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
