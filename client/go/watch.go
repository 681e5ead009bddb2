package rowlock

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"
)

const (
	// A stream that says nothing for so long counts as dead: nodes say something every 15 s.
	silenceMax = 40 * time.Second
	// Between two rounds through all nodes, at most.
	watchPauseMax = 5 * time.Second
)

// WatchOptions say which locks are meant: one, those below a prefix, or all.
type WatchOptions struct {
	// Lock is a path: /locks/nightly.
	Lock string
	// Prefix of paths: /locks/ci/.
	Prefix string
	// After is the ID of the last event that is known already.
	After string
}

// Event is what happened to a lock.
type Event struct {
	// ID to go on from (WatchOptions.After). Empty: there is none behind this event.
	ID string
	// Event is requested, granted, converted, asked, released, lost, abandoned or gap.
	Event string
	// Data is the record of the history.
	Data json.RawMessage
}

// Watch calls told with what happens, in order, until ctx ends or told returns an error, which it returns. It
// goes on at another node when one fails. Then an event may be told again; none is left out, except where a
// gap says so.
func (c *Cluster) Watch(ctx context.Context, options WatchOptions, told func(Event) error) error {
	query := url.Values{}
	if options.Lock != "" {
		query.Set("lock", options.Lock)
	}
	if options.Prefix != "" {
		query.Set("prefix", options.Prefix)
	}
	w := &watcher{transport: c.transport, path: "/v1/watch?" + query.Encode(), after: options.After, told: told}
	for failed := 0; ; failed++ {
		at := c.transport.at.Load()
		heard, err := w.stream(ctx, at)
		if heard {
			failed = 0
		}
		var refused *Refused
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case w.ended != nil:
			return w.ended
		case errors.As(err, &refused):
			return err
		}
		c.transport.next(at)
		if failed%len(c.transport.nodes) == 0 {
			pause(ctx, shortest(roundPause<<shortest(time.Duration(failed), 8), watchPauseMax))
		}
	}
}

type watcher struct {
	transport *transport
	path      string
	after     string
	told      func(Event) error
	// What told returned.
	ended error
}

// stream reads one answer of one node; whether it has told anything.
func (w *watcher) stream(ctx context.Context, at uint32) (bool, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	silence := time.AfterFunc(silenceMax, cancel)
	defer silence.Stop()
	header := http.Header{"Accept": {"text/event-stream"}}
	if w.after != "" {
		header.Set("Last-Event-ID", w.after)
	}
	response, err := w.transport.send(ctx, at, http.MethodGet, w.path, nil, header)
	if err != nil {
		return false, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		found, err := read(response)
		if err == nil && (found.isRefusal() || found.Status == http.StatusNotFound && found.Strange == "") {
			return false, refusal(found)
		}
		return false, fmt.Errorf("%d: %v", response.StatusCode, err)
	}
	return w.events(response.Body, func() { silence.Reset(silenceMax) })
}

func (w *watcher) events(body io.Reader, heard func()) (bool, error) {
	lines := bufio.NewScanner(body)
	lines.Buffer(nil, bodyMax)
	var id, event string
	var data []string
	isAny := false
	for lines.Scan() {
		heard()
		name, value, _ := strings.Cut(lines.Text(), ":")
		value = strings.TrimPrefix(value, " ")
		switch {
		case lines.Text() == "":
			isAny = isAny || id != "" || len(data) > 0
			if len(data) > 0 {
				w.ended = w.told(Event{id, event, json.RawMessage(strings.Join(data, "\n"))})
			}
			if w.ended != nil {
				return isAny, w.ended
			}
			if id != "" {
				w.after = id
			}
			id, event, data = "", "", nil
		case name == "id":
			id = value
		case name == "event":
			event = value
		case name == "data":
			data = append(data, value)
		}
	}
	return isAny, lines.Err()
}
