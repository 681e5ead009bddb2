//! Console at `/ui/` (docs/console.md), embedded in the program. The files contain no data of the cluster, so
//! they need no token; the page reads its data from the reports, which need a token.
//!
//! Invariant: the page sends requests only to this listener and runs only its own script files; the policy
//! header in each response makes the browser enforce both. Invariant: all files together are below 104 KiB,
//! and below 40 KiB compressed with gzip, the form embedded by `build.rs`. Browsers get readable, unminified
//! sources.

use std::io::Read as _;
use std::sync::{Arc, OnceLock};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::get;
use flate2::read::GzDecoder;

/// File of the console: path, content type, gzip-compressed bytes.
pub(super) type File = (&'static str, &'static str, &'static [u8]);

/// Embeds a gzip-compressed file.
macro_rules! zipped {
    ($name:literal) => {
        include_bytes!(concat!(env!("OUT_DIR"), "/", $name, ".gz"))
    };
}
pub(super) use zipped;

const STYLE: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";

static FILES: [File; 17] = [
    ("/ui/", "text/html; charset=utf-8", zipped!("index.html")),
    ("/ui/style.css", STYLE, zipped!("style.css")),
    ("/ui/icon.svg", "image/svg+xml", zipped!("icon.svg")),
    ("/ui/app.js", SCRIPT, zipped!("app.js")),
    ("/ui/dom.js", SCRIPT, zipped!("dom.js")),
    ("/ui/net.js", SCRIPT, zipped!("net.js")),
    ("/ui/health.js", SCRIPT, zipped!("health.js")),
    ("/ui/cluster.js", SCRIPT, zipped!("cluster.js")),
    ("/ui/locks.js", SCRIPT, zipped!("locks.js")),
    ("/ui/lock.js", SCRIPT, zipped!("lock.js")),
    ("/ui/contention.js", SCRIPT, zipped!("contention.js")),
    ("/ui/lanes.js", SCRIPT, zipped!("lanes.js")),
    ("/ui/waits.js", SCRIPT, zipped!("waits.js")),
    ("/ui/tree.js", SCRIPT, zipped!("tree.js")),
    ("/ui/sim.js", SCRIPT, zipped!("sim.js")),
    ("/ui/sessions.js", SCRIPT, zipped!("sessions.js")),
    ("/ui/try.js", SCRIPT, zipped!("try.js")),
];

/// Content security policy: the page may load from and connect to this listener only. No page may embed the
/// console in a frame.
const POLICY: &str = "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Returns the routes of the console's files and a redirect from `/`.
pub(super) fn routes<S: Clone + Send + Sync + 'static>() -> Router<S> {
    let start = Router::new().route("/ui", get(|| async { Redirect::permanent("/ui/") }));
    let start = start.route("/", get(|| async { Redirect::temporary("/ui/") }));
    add(start, &FILES)
}

/// Adds public files to a router. For clients without gzip, each file is decompressed once.
pub(super) fn add<S: Clone + Send + Sync + 'static>(router: Router<S>, files: &'static [File]) -> Router<S> {
    files.iter().fold(router, |router, file| {
        let plain = Arc::new(OnceLock::new());
        router.route(file.0, get(move |headers: HeaderMap| async move { answer(file, &headers, &plain) }))
    })
}

/// Decompresses a file of the program.
pub(super) fn unzip(zipped: &[u8]) -> Bytes {
    let mut plain = Vec::new();
    GzDecoder::new(zipped).read_to_end(&mut plain).expect("Invariant: the build compressed the file");
    Bytes::from(plain)
}

fn takes_gzip(headers: &HeaderMap) -> bool {
    let all = headers.get_all(header::ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
    all.flat_map(|text| text.split(',')).any(|coding| {
        let mut parts = coding.split(';').map(str::trim);
        let is_gzip = parts.next().is_some_and(|name| name.eq_ignore_ascii_case("gzip"));
        let is_refusal =
            |part: &str| part.strip_prefix("q=").is_some_and(|q| q.trim_matches(['0', '.']).is_empty());
        is_gzip && !parts.any(is_refusal)
    })
}

fn answer(&(_, kind, zipped): &File, asked: &HeaderMap, plain: &OnceLock<Bytes>) -> Response {
    let is_zipped = takes_gzip(asked);
    let body =
        if is_zipped { Body::from(zipped) } else { Body::from(plain.get_or_init(|| unzip(zipped)).clone()) };
    let headers = [
        (header::CONTENT_TYPE, kind),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::REFERRER_POLICY, "no-referrer"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ];
    let headers = headers.map(|(name, value)| (name, HeaderValue::from_static(value)));
    let coding = is_zipped.then_some([(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"))]);
    let vary = [(header::VARY, HeaderValue::from_static("accept-encoding"))];
    let mut response = (headers, vary, body).into_response();
    response.headers_mut().extend(coding.into_iter().flatten());
    response
}

/// Returns whether the request comes from a page of the requested host, thus from the console.
pub(super) fn is_own_page(headers: &HeaderMap) -> bool {
    let mut origins = headers.get_all(header::ORIGIN).iter();
    let (Some(origin), None) = (origins.next().and_then(|origin| origin.to_str().ok()), origins.next())
    else {
        return false;
    };
    let site = origin.strip_prefix("https://").or_else(|| origin.strip_prefix("http://"));
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok());
    site.zip(host).is_some_and(|(site, host)| !host.is_empty() && site.eq_ignore_ascii_case(host))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(file: &File) -> String {
        String::from_utf8(unzip(file.2).to_vec()).unwrap()
    }

    const BYTES_MAX: usize = 104 << 10;
    const SENT_MAX: usize = 40 << 10;

    #[test]
    fn files_are_compressed_for_clients_that_accept_gzip() {
        let takes = |text| takes_gzip(&HeaderMap::from_iter([(header::ACCEPT_ENCODING, text)]));
        for text in ["gzip", "deflate, GZIP;q=0.5", "br;q=1.0, gzip ; q=1"] {
            assert!(takes(HeaderValue::from_static(text)), "{text}");
        }
        for text in ["identity", "", "br, gzip;q=0", "gzip; q=0.000", "xgzip"] {
            assert!(!takes(HeaderValue::from_static(text)), "{text}");
        }
        let unpacked = OnceLock::new();
        let asked = HeaderMap::from_iter([(header::ACCEPT_ENCODING, HeaderValue::from_static("gzip"))]);
        assert_eq!(answer(&FILES[0], &asked, &unpacked).headers()[header::CONTENT_ENCODING], "gzip");
        assert!(unpacked.get().is_none(), "it is sent as it is");
        let plain = answer(&FILES[0], &HeaderMap::new(), &unpacked);
        assert!(!plain.headers().contains_key(header::CONTENT_ENCODING));
        assert_eq!(unpacked.get().unwrap(), include_str!("ui/index.html"));
    }

    #[test]
    fn the_console_stays_small_and_has_no_script_in_its_page() {
        let bytes: usize = FILES.iter().map(|file| text(file).len()).sum();
        assert!(bytes < BYTES_MAX, "{bytes} bytes");
        let sent: usize = FILES.iter().map(|(_, _, zipped)| zipped.len()).sum();
        assert!(sent < SENT_MAX, "{sent} bytes");
        println!("{bytes} bytes, {sent} by gzip");
        let page = text(&FILES[0]);
        assert_eq!(page.matches("<script").count(), 1, "one, from a file");
        assert!(page.contains("<script type=\"module\" src=\"app.js\"></script>"));
        assert!(!page.contains("style="), "the policy forbids it");
    }

    #[test]
    fn no_file_writes_markup_from_text_or_names_another_site() {
        for file in &FILES {
            let (path, text) = (file.0, text(file));
            for word in ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "cookie"]
            {
                assert!(!text.contains(word), "{path} has {word}");
            }
            let sites = text.matches("http://").count() + text.matches("https://").count();
            let namespaces = text.matches("http://www.w3.org/2000/svg").count();
            assert_eq!(sites, namespaces, "{path} names a site");
        }
    }

    #[test]
    fn page_is_own_only_for_the_requested_host() {
        let headers = |origin: &'static str, host: &'static str| {
            HeaderMap::from_iter([
                (header::ORIGIN, HeaderValue::from_static(origin)),
                (header::HOST, HeaderValue::from_static(host)),
            ])
        };
        assert!(is_own_page(&headers("http://127.0.0.1:8481", "127.0.0.1:8481")));
        assert!(is_own_page(&headers("https://DB1.example", "db1.example")));
        for origin in
            ["null", "http://127.0.0.1:8482", "http://127.0.0.1", "http://127.0.0.1:8481.evil", "http://"]
        {
            assert!(!is_own_page(&headers(origin, "127.0.0.1:8481")), "{origin}");
        }
        let mut two = headers("http://a", "a");
        two.append(header::ORIGIN, HeaderValue::from_static("http://evil"));
        assert!(!is_own_page(&two), "which of them counts is not clear");
        assert!(!is_own_page(&HeaderMap::new()));
    }
}
