//! `GET /v1/watch`: lock events as server-sent events (the WHATWG's HTML, section 9.2).
//!
//! Invariant: an id stands where all of its change has been told, so a client that comes back with its last
//! id misses nothing; it may hear of a change again of which it has heard a part.

use std::convert::Infallible;

use axum::Extension;
use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, Uri, header};
use axum::response::IntoResponse;
use bytes::Bytes;
use futures_util::stream;
use rowlock_env::busy::{self, Work};
use rowlock_env::task::Shutdown;
use rowlock_env::time::{self, Instant};
use rowlock_proto::report::{HistoryEntry, HistoryEvent};
use rowlock_proto::{Right, Zxid};
use rowlock_types::limits::{API_REQUEST_MAX, API_WATCH_MAX};

use super::super::connection::{Turn, Visitor};
use super::{Answer, Asked, Denied, report};
use crate::api::{Refusal, Told, Watch};
use crate::report::question::WatchQuestion;

/// What a client has got last, as browsers say it.
const LAST_EVENT_ID: &str = "last-event-id";
/// How every stream begins: after how many milliseconds a client comes back.
const BEGIN: &str = "retry: 1000\n";
/// For clients that count silence as death.
const SIGN: &str = ":\n";

/// A stream under way.
struct Stream {
    watch: Watch,
    visitor: Visitor,
    turn: Option<Turn>,
    shutdown: Shutdown,
    ends: Instant,
    has_begun: bool,
}

pub(super) async fn watch(
    asked: Asked,
    Extension(shutdown): Extension<Shutdown>,
    uri: Uri,
    headers: HeaderMap,
) -> Answer {
    let question = question(&uri, &headers)?;
    asked.check_role(asked.asker.may_see(&question.scope), Right::See, &question.scope.to_string())?;
    let watch = asked.api().watch(&asked.caller(), question).await?;
    let ends = time::now() + API_WATCH_MAX;
    let stream = Stream { watch, visitor: asked.visitor, turn: None, shutdown, ends, has_begun: false };
    let content_type = HeaderValue::from_static("text/event-stream");
    let body = Body::from_stream(stream::unfold(stream, piece));
    let headers = [
        (header::CONTENT_TYPE, content_type),
        // Proxies are not to collect it.
        (header::HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no")),
    ];
    Ok((headers, body).into_response())
}

/// What the client has got goes before what its address says: it comes back to the same one.
fn question(uri: &Uri, headers: &HeaderMap) -> Result<WatchQuestion, Denied> {
    let question = WatchQuestion::parse(uri.query().unwrap_or_default());
    let mut question = question.map_err(|refusal| report::problem(&refusal))?;
    if let Some(last) = headers.get(LAST_EVENT_ID) {
        let last = last.to_str().ok().and_then(|text| text.trim().parse().ok());
        let wrong = || Refusal::Bad("Last-Event-ID is not the id of an event".to_owned());
        question.after = Some(Zxid(last.ok_or_else(wrong)?));
    }
    Ok(question)
}

async fn piece(mut stream: Stream) -> Option<(Result<Bytes, Infallible>, Stream)> {
    // Only now: the request that began it counts as answered when there is a stream.
    let visitor = &stream.visitor;
    stream.turn.get_or_insert_with(|| visitor.begins(Some(API_WATCH_MAX + API_REQUEST_MAX)));
    let told = tokio::select! {
        biased;
        () = stream.shutdown.wait() => return None,
        () = time::sleep_until(stream.ends) => return None,
        told = stream.watch.next() => told?,
    };
    let mut text = Vec::new();
    if !std::mem::replace(&mut stream.has_begun, true) {
        text.extend_from_slice(BEGIN.as_bytes());
    }
    write(&told, &mut text);
    busy::spend(Work::Event, told.entries.len() as u64);
    busy::spend(Work::LogByte, text.len() as u64);
    stream.watch.sends(text.len());
    busy::end_turn_if_over().await;
    assert!(!text.is_empty(), "a piece without bytes would end the body");
    Some((Ok(Bytes::from(text)), stream))
}

fn write(told: &Told, out: &mut Vec<u8>) {
    let Told { entries, checkpoint } = told;
    if entries.is_empty() {
        out.extend_from_slice(SIGN.as_bytes());
    }
    for (at, entry) in entries.iter().enumerate() {
        let is_whole = match entries.get(at + 1) {
            Some(next) => next.zxid != entry.zxid,
            None => checkpoint.is_some(),
        };
        if is_whole {
            id(entry.zxid, out);
        }
        out.extend_from_slice(entry.encoded(event));
    }
    // An id without data tells the client how far it is, and nothing else.
    if let Some(checkpoint) = checkpoint.filter(|last| entries.last().is_none_or(|entry| entry.zxid < *last))
    {
        id(checkpoint, out);
        out.push(b'\n');
    }
}

fn event(entry: &HistoryEntry) -> Vec<u8> {
    let mut out = format!("event: {}\ndata: ", name(entry)).into_bytes();
    serde_json::to_writer(&mut out, entry).expect("Invariant: an entry is structs, text and numbers");
    out.extend_from_slice(b"\n\n");
    out
}

fn id(zxid: Zxid, out: &mut Vec<u8>) {
    out.extend_from_slice(format!("id: {}\n", zxid.0).as_bytes());
}

fn name(entry: &HistoryEntry) -> &'static str {
    match entry.event {
        HistoryEvent::Requested { .. } => "requested",
        HistoryEvent::Granted { .. } => "granted",
        HistoryEvent::Converted(_) => "converted",
        HistoryEvent::Asked { .. } => "asked",
        HistoryEvent::Abandoned(_) => "abandoned",
        HistoryEvent::Released(_) => "released",
        HistoryEvent::Lost(_) => "lost",
        HistoryEvent::Gap { .. } => "gap",
        _ => unreachable!("this release tells of nothing else"),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::lock_feed::FeedEntry;

    fn gap(zxid: i64) -> Arc<FeedEntry> {
        let event = HistoryEvent::Gap { reason: "a\nb".to_owned(), from_zxid: Zxid(1), missing: None };
        Arc::new(FeedEntry::from(HistoryEntry { time_ms: 7, zxid: Zxid(zxid), event }))
    }

    fn text(entries: Vec<Arc<FeedEntry>>, checkpoint: Option<i64>) -> String {
        let mut out = Vec::new();
        write(&Told { entries, checkpoint: checkpoint.map(Zxid) }, &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn an_id_stands_with_the_last_entry_of_its_change_and_no_text_of_a_client_ends_a_line() {
        let data = |zxid: i64| {
            format!(
                "event: gap\ndata: {{\"time_ms\":7,\"zxid\":{zxid},\"event\":\"gap\",\"reason\":\"a\\nb\",\
                 \"from_zxid\":1,\"missing\":null}}\n\n"
            )
        };
        let (two, three) = (data(2), data(3));
        assert_eq!(text(vec![gap(2), gap(2), gap(3)], Some(3)), format!("{two}id: 2\n{two}id: 3\n{three}"));
        assert_eq!(text(vec![gap(2), gap(3)], None), format!("id: 2\n{two}{three}"), "3 goes on");
        assert_eq!(text(vec![gap(2)], Some(5)), format!("id: 2\n{two}id: 5\n\n"));
        assert_eq!(text(Vec::new(), Some(5)), ":\nid: 5\n\n");
    }
}
