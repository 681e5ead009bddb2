//! `GET /v1/watch`: lock events as server-sent events (WHATWG HTML, section 9.2).
//!
//! Invariant: an id follows only complete changes, so a client that reconnects with its last id misses no
//! event; events of a partly received change may be sent again.

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
use rowlock_proto::report::HistoryEntry;
use rowlock_proto::{Right, Zxid};

use super::super::connection::{PendingRequest, Visitor};
use super::{Answer, ApiCall, Denied, report};
use crate::access::api::{EventBatch, Refusal, Watch};
use crate::access::report::question::WatchQuestion;
use crate::limits::{API_REQUEST_MAX, API_WATCH_MAX};

/// Header with the id of the last received event, sent by browsers.
const LAST_EVENT_ID: &str = "last-event-id";
/// Beginning of each stream: the delay before a reconnect, in milliseconds.
const BEGIN: &str = "retry: 1000\n";
/// Comment line for quiet periods, so that clients do not time out.
const KEEPALIVE: &str = ":\n";

struct Stream {
    watch: Watch,
    visitor: Visitor,
    turn: Option<PendingRequest>,
    shutdown: Shutdown,
    ends: Instant,
    has_begun: bool,
}

pub(super) async fn watch(
    call: ApiCall,
    Extension(shutdown): Extension<Shutdown>,
    uri: Uri,
    headers: HeaderMap,
) -> Answer {
    let question = question(&uri, &headers)?;
    call.check_role(call.principal.may_see(&question.scope), Right::See, &question.scope.to_string())?;
    let watch = call.api().watch(&call.caller(), question).await?;
    let ends = time::now() + API_WATCH_MAX;
    let stream = Stream { watch, visitor: call.visitor, turn: None, shutdown, ends, has_begun: false };
    let content_type = HeaderValue::from_static("text/event-stream");
    let body = Body::from_stream(stream::unfold(stream, piece));
    let headers = [
        (header::CONTENT_TYPE, content_type),
        // Disables buffering in proxies.
        (header::HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no")),
    ];
    Ok((headers, body).into_response())
}

/// Parses the question. The header has priority over the query: a browser reconnects with the original URL.
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
    // The turn begins with the first chunk: until then the connection's turn is the request that opened the
    // stream.
    let visitor = &stream.visitor;
    stream.turn.get_or_insert_with(|| visitor.begin_request(Some(API_WATCH_MAX + API_REQUEST_MAX)));
    let batch = tokio::select! {
        biased;
        () = stream.shutdown.wait() => return None,
        () = time::sleep_until(stream.ends) => return None,
        batch = stream.watch.next() => batch?,
    };
    let mut text = Vec::new();
    if !std::mem::replace(&mut stream.has_begun, true) {
        text.extend_from_slice(BEGIN.as_bytes());
    }
    write(&batch, &mut text);
    busy::spend(Work::Event, batch.entries.len() as u64);
    busy::spend(Work::LogByte, text.len() as u64);
    stream.watch.begin_pause(text.len());
    busy::end_turn_if_over().await;
    assert!(!text.is_empty(), "an empty chunk would end the body");
    Some((Ok(Bytes::from(text)), stream))
}

fn write(batch: &EventBatch, out: &mut Vec<u8>) {
    let EventBatch { entries, checkpoint } = batch;
    if entries.is_empty() {
        out.extend_from_slice(KEEPALIVE.as_bytes());
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
    // An id without data only advances the client's position.
    if let Some(checkpoint) = checkpoint.filter(|last| entries.last().is_none_or(|entry| entry.zxid < *last))
    {
        id(checkpoint, out);
        out.push(b'\n');
    }
}

fn event(entry: &HistoryEntry) -> Vec<u8> {
    let mut out = format!("event: {}\ndata: ", entry.event.name()).into_bytes();
    serde_json::to_writer(&mut out, entry).expect("Invariant: an entry is structs, text and numbers");
    out.extend_from_slice(b"\n\n");
    out
}

fn id(zxid: Zxid, out: &mut Vec<u8>) {
    out.extend_from_slice(format!("id: {}\n", zxid.0).as_bytes());
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rowlock_proto::report::{Gap, GapReason, HistoryEvent};

    use super::*;
    use crate::access::lock_feed::FeedEntry;

    fn gap(zxid: i64) -> Arc<FeedEntry> {
        let event = HistoryEvent::Gap(Gap { reason: GapReason::Lost, from_zxid: Zxid(1), missing: None });
        Arc::new(FeedEntry::from(HistoryEntry { time_ms: 7, zxid: Zxid(zxid), event }))
    }

    fn text(entries: Vec<Arc<FeedEntry>>, checkpoint: Option<i64>) -> String {
        let mut out = Vec::new();
        write(&EventBatch { entries, checkpoint: checkpoint.map(Zxid) }, &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn id_follows_complete_changes_and_no_client_text_ends_a_line() {
        let data = |zxid: i64| {
            format!(
                "event: gap\ndata: {{\"time_ms\":7,\"zxid\":{zxid},\"event\":\"gap\",\"reason\":\"lost\",\
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
