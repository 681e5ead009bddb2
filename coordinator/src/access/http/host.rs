//! Check of the requested host. By DNS rebinding a foreign web page can point its host name to this node's
//! address; an operator's browser then sends requests with the foreign name, and this check refuses the
//! requests. IP addresses and localhost are not subject to rebinding.

use std::net::{Ipv4Addr, Ipv6Addr};

use axum::extract::{Request, State};
use axum::http::{StatusCode, Version, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::HttpContext;
use super::problem::Problem;

/// Paths for load balancers that send HTTP/1.0 without a Host header. No browser omits the header.
const PROBES: [&str; 3] = ["/livez", "/readyz", "/metrics"];

/// Passes requests for this host and refuses all others.
pub(super) async fn check(State(context): State<HttpContext>, request: Request, next: Next) -> Response {
    match misdirected(&request, &context.hosts) {
        None => next.run(request).await,
        Some(detail) => Problem::new(StatusCode::MISDIRECTED_REQUEST, detail).into_response(),
    }
}

fn misdirected(request: &Request, hosts: &[String]) -> Option<String> {
    const REMEDY: &str = "use an IP address or localhost, or add the name to http.hosts in cluster.toml";
    let mut named = request.headers().get_all(header::HOST).iter();
    let host = match (named.next(), named.next()) {
        (None, _) if request.version() == Version::HTTP_10 && PROBES.contains(&request.uri().path()) => None,
        (Some(host), None) => Some(host.to_str().unwrap_or_default()),
        _ => return Some(format!("the request must name one host; {REMEDY}")),
    };
    // A target in absolute form has priority over the header.
    let target = request.uri().authority().map(|authority| authority.as_str());
    let stranger = host.into_iter().chain(target).find(|host| !is_here(host, hosts))?;
    let shown: String = stranger.chars().filter(|c| !c.is_control()).take(64).collect();
    Some(format!("the host name of this node is not \"{shown}\"; {REMEDY}"))
}

/// Parses `host` or `host:port` and compares the host; any port is valid, since a proxy may use another port.
fn is_here(authority: &str, hosts: &[String]) -> bool {
    if let Some(rest) = authority.strip_prefix('[') {
        return rest
            .split_once(']')
            .is_some_and(|(ip, port)| ip.parse::<Ipv6Addr>().is_ok() && is_port(port));
    }
    let end = authority.find(':').unwrap_or(authority.len());
    let (host, port) = authority.split_at(end);
    let host = host.strip_suffix('.').unwrap_or(host);
    let is_known = host.parse::<Ipv4Addr>().is_ok()
        || host.eq_ignore_ascii_case("localhost")
        || hosts.iter().any(|known| known.eq_ignore_ascii_case(host));
    is_known && is_port(port)
}

fn is_port(text: &str) -> bool {
    text.is_empty() || text.strip_prefix(':').is_some_and(|port| port.bytes().all(|b| b.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_name_matches_only_as_a_whole() {
        let hosts = ["rowlock.internal".to_owned()];
        for here in ["rowlock.internal", "ROWLOCK.internal:80", "rowlock.internal.", "[::1]", "1.2.3.4:5"] {
            assert!(is_here(here, &hosts), "{here}");
        }
        for other in
            ["", "internal", "x.rowlock.internal", "rowlock.internal:80@evil", "[::1].evil", "::1", "1.2.3"]
        {
            assert!(!is_here(other, &hosts), "{other}");
        }
    }
}
