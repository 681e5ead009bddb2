//! Which host a request is for. A page of another site that lets its name point to this node's address (DNS
//! rebinding) makes an operator's browser ask for that name: it is refused. IP addresses and localhost cannot
//! be pointed anywhere.

use std::net::{Ipv4Addr, Ipv6Addr};

use axum::extract::{Request, State};
use axum::http::{StatusCode, Version, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::HttpContext;
use super::problem::Problem;

/// Paths that a load balancer may ask without a Host, by HTTP/1.0. No browser does.
const PROBES: [&str; 3] = ["/livez", "/readyz", "/metrics"];

/// Lets a request pass that is for this host.
pub(super) async fn check(State(context): State<HttpContext>, request: Request, next: Next) -> Response {
    match misdirected(&request, &context.hosts) {
        None => next.run(request).await,
        Some(detail) => Problem::new(StatusCode::MISDIRECTED_REQUEST, detail).into_response(),
    }
}

fn misdirected(request: &Request, hosts: &[String]) -> Option<String> {
    const REMEDY: &str = "ask for an IP address or localhost, or add the name to http.hosts in cluster.toml";
    let mut named = request.headers().get_all(header::HOST).iter();
    let host = match (named.next(), named.next()) {
        (None, _) if request.version() == Version::HTTP_10 && PROBES.contains(&request.uri().path()) => None,
        (Some(host), None) => Some(host.to_str().unwrap_or_default()),
        _ => return Some(format!("the request does not name one host; {REMEDY}")),
    };
    // A target in absolute form goes before the header.
    let target = request.uri().authority().map(|authority| authority.as_str());
    let stranger = host.into_iter().chain(target).find(|host| !is_here(host, hosts))?;
    let shown: String = stranger.chars().filter(|c| !c.is_control()).take(64).collect();
    Some(format!("this node is not known as \"{shown}\"; {REMEDY}"))
}

/// `host` or `host:port`, of whatever port: a proxy may have another.
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
    fn a_name_counts_if_the_configuration_has_it_and_only_as_a_whole() {
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
