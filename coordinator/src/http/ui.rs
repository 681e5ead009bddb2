//! `/ui/`: the console (docs/console.md), a page of the node's own. Its files are part of the program, tell
//! nothing of the cluster and so need no token; what the page shows comes from the reports, which do.
//!
//! Invariant: the page asks only this listener, and runs no script but its files: the browser
//! enforces that by the policy in every answer. Invariant: all files together stay below 96 KiB, and below 40
//! as they travel (gzip). They are as they were written, so that they can be read in a browser.

use std::io::Write as _;
use std::sync::{Arc, OnceLock};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::get;
use flate2::Compression;
use flate2::write::GzEncoder;

/// A file of the console: its path, its kind, its bytes.
pub(super) type File = (&'static str, &'static str, &'static str);

const STYLE: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";

static FILES: [File; 16] = [
    ("/ui/", "text/html; charset=utf-8", include_str!("ui/index.html")),
    ("/ui/style.css", STYLE, include_str!("ui/style.css")),
    ("/ui/icon.svg", "image/svg+xml", include_str!("ui/icon.svg")),
    ("/ui/app.js", SCRIPT, include_str!("ui/app.js")),
    ("/ui/dom.js", SCRIPT, include_str!("ui/dom.js")),
    ("/ui/net.js", SCRIPT, include_str!("ui/net.js")),
    ("/ui/health.js", SCRIPT, include_str!("ui/health.js")),
    ("/ui/cluster.js", SCRIPT, include_str!("ui/cluster.js")),
    ("/ui/locks.js", SCRIPT, include_str!("ui/locks.js")),
    ("/ui/lock.js", SCRIPT, include_str!("ui/lock.js")),
    ("/ui/lanes.js", SCRIPT, include_str!("ui/lanes.js")),
    ("/ui/waits.js", SCRIPT, include_str!("ui/waits.js")),
    ("/ui/tree.js", SCRIPT, include_str!("ui/tree.js")),
    ("/ui/sim.js", SCRIPT, include_str!("ui/sim.js")),
    ("/ui/sessions.js", SCRIPT, include_str!("ui/sessions.js")),
    ("/ui/try.js", SCRIPT, include_str!("ui/try.js")),
];

/// What the browser lets the page do: load from and ask this listener. No page may show it in a frame.
const POLICY: &str = "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Serves the files, to everybody, and leads there from `/`.
pub(super) fn routes<S: Clone + Send + Sync + 'static>() -> Router<S> {
    let start = Router::new().route("/ui", get(|| async { Redirect::permanent("/ui/") }));
    let start = start.route("/", get(|| async { Redirect::temporary("/ui/") }));
    add(start, &FILES)
}

/// Adds files that everybody may have. They are compressed once, for clients that take that.
pub(super) fn add<S: Clone + Send + Sync + 'static>(router: Router<S>, files: &'static [File]) -> Router<S> {
    files.iter().fold(router, |router, file| {
        let zipped = Arc::new(OnceLock::new());
        router.route(file.0, get(move |headers: HeaderMap| async move { answer(file, &headers, &zipped) }))
    })
}

fn gzip(text: &str) -> Bytes {
    let mut zipped = GzEncoder::new(Vec::new(), Compression::best());
    let done = zipped.write_all(text.as_bytes()).and_then(|()| zipped.finish());
    Bytes::from(done.expect("Invariant: memory takes all bytes"))
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

fn answer(&(_, kind, text): &File, asked: &HeaderMap, zipped: &OnceLock<Bytes>) -> Response {
    let is_zipped = takes_gzip(asked);
    let body =
        if is_zipped { Body::from(zipped.get_or_init(|| gzip(text)).clone()) } else { Body::from(text) };
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

/// Whether a request comes from a page of the host that it is for: of the console.
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
    use std::io::Read as _;

    use super::*;

    const BYTES_MAX: usize = 96 << 10;
    const SENT_MAX: usize = 40 << 10;

    #[test]
    fn files_are_compressed_for_clients_that_take_it() {
        let takes = |text| takes_gzip(&HeaderMap::from_iter([(header::ACCEPT_ENCODING, text)]));
        for text in ["gzip", "deflate, GZIP;q=0.5", "br;q=1.0, gzip ; q=1"] {
            assert!(takes(HeaderValue::from_static(text)), "{text}");
        }
        for text in ["identity", "", "br, gzip;q=0", "gzip; q=0.000", "xgzip"] {
            assert!(!takes(HeaderValue::from_static(text)), "{text}");
        }
        let (_, _, text) = FILES[0];
        let zipped = OnceLock::new();
        let asked = HeaderMap::from_iter([(header::ACCEPT_ENCODING, HeaderValue::from_static("gzip"))]);
        assert_eq!(answer(&FILES[0], &asked, &zipped).headers()[header::CONTENT_ENCODING], "gzip");
        let plain = answer(&FILES[0], &HeaderMap::new(), &zipped);
        assert!(!plain.headers().contains_key(header::CONTENT_ENCODING));
        let mut read = String::new();
        flate2::read::GzDecoder::new(&zipped.get().unwrap()[..]).read_to_string(&mut read).unwrap();
        assert_eq!(read, text);
    }

    #[test]
    fn the_console_stays_small_and_has_no_script_in_its_page() {
        let bytes: usize = FILES.iter().map(|(_, _, text)| text.len()).sum();
        assert!(bytes < BYTES_MAX, "{bytes} bytes");
        let sent: usize = FILES.iter().map(|(_, _, text)| gzip(text).len()).sum();
        assert!(sent < SENT_MAX, "{sent} bytes");
        println!("{bytes} bytes, {sent} by gzip");
        let (_, _, page) = FILES[0];
        assert_eq!(page.matches("<script").count(), 1, "one, from a file");
        assert!(page.contains("<script type=\"module\" src=\"app.js\"></script>"));
        assert!(!page.contains("style="), "the policy forbids it");
    }

    #[test]
    fn no_file_writes_markup_from_text_or_names_another_site() {
        for (path, _, text) in FILES {
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
    fn a_page_counts_as_own_only_for_the_very_host_that_it_asks() {
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
