package rowlock

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	// FenceHeader is the header in which a token travels to a service: the lock, percent-encoded, a semicolon,
	// the token.
	FenceHeader = "Rowlock-Fence"
	// How long a holder waits for requests of earlier holders to end.
	enterMax = 30 * time.Second
	// Of a token.
	digitsMax = 19
)

// Fence is the largest token that a resource has seen: one for each resource. The zero value has seen none.
// It lives in memory: data that outlive the program need the token beside them (docs/fencing.md). It is safe
// for concurrent use.
type Fence struct {
	mutex sync.Mutex
	seen  uint64
	// Tokens between Enter and its end, each with its count.
	inside map[uint64]int
	// Is closed at the next end of a write.
	changed chan struct{}
}

// Stale means that a token is smaller than one that was seen: its holder has lost the lock.
type Stale struct {
	Token, Seen uint64
}

func (stale *Stale) Error() string {
	return fmt.Sprintf("rowlock: stale token %d: a holder with token %d has been here", stale.Token, stale.Seen)
}

// NewFence begins with the largest token that was stored beside the data.
func NewFence(seen uint64) *Fence {
	return &Fence{seen: seen}
}

// Seen is the largest token so far.
func (f *Fence) Seen() uint64 {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	return f.seen
}

// Check remembers the token if none was larger; false: refuse the write. Compare and write must be one step:
// call it under the mutex of the data, or use Enter.
func (f *Fence) Check(token uint64) bool {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	return f.admit(token)
}

func (f *Fence) admit(token uint64) bool {
	if token < f.seen {
		return false
	}
	f.seen = token
	return true
}

// Enter is Check for writes that take time: it waits until those with smaller tokens have ended. Call leave at
// the end of the write. Smaller tokens are refused from the call on. The error is a *Stale, or that of ctx.
func (f *Fence) Enter(ctx context.Context, token uint64) (leave func(), err error) {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	if !f.admit(token) {
		return nil, &Stale{token, f.seen}
	}
	if f.inside == nil {
		f.inside, f.changed = map[uint64]int{}, make(chan struct{})
	}
	f.inside[token]++
	for f.isAfterAnother(token) {
		changed := f.changed
		f.mutex.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			err = ctx.Err()
		}
		f.mutex.Lock()
		if err != nil {
			break
		}
	}
	if err == nil && token < f.seen {
		err = &Stale{token, f.seen}
	}
	if err != nil {
		f.leave(token)
		return nil, err
	}
	var once sync.Once
	return func() {
		once.Do(func() {
			f.mutex.Lock()
			defer f.mutex.Unlock()
			f.leave(token)
		})
	}, nil
}

func (f *Fence) isAfterAnother(token uint64) bool {
	for other := range f.inside {
		if other < token {
			return true
		}
	}
	return false
}

func (f *Fence) leave(token uint64) {
	if f.inside[token]--; f.inside[token] == 0 {
		delete(f.inside, token)
	}
	close(f.changed)
	f.changed = make(chan struct{})
}

// FenceStore has the largest token of each lock where all processes of a service see it.
type FenceStore interface {
	// Enter locks the token of a lock for all processes until leave, and returns it. leave stores a token, which may be
	// the same, and unlocks. ctx bounds the wait alone: database/sql ends a transaction with the context of BeginTx,
	// so give that another.
	Enter(ctx context.Context, lock string) (seen uint64, leave func(seen uint64) error, err error)
}

// Fenced puts a fence before a handler: requests that change something need the header Rowlock-Fence with one
// of these locks. A late holder gets 412; 428 is for no header, 400 for another lock or a malformed header, and 503
// while requests of another holder do not end. The token of a request counts unless the handler answers with a 4xx: put
// authentication in front all the same. store may be nil: then it is a service of one process. The token of the lock
// is locked in it while the handler runs (docs/fencing.md). If it cannot be stored, the connection is ended.
func Fenced(next http.Handler, store FenceStore, locks ...string) http.Handler {
	all := map[string]*turns{}
	for _, lock := range locks {
		all[headerName(lock)] = newTurns(lock, store)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.Method {
		case http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace:
			next.ServeHTTP(w, r)
			return
		}
		values := r.Header.Values(FenceHeader)
		if len(values) == 0 {
			http.Error(w, "send the header "+FenceHeader+": LOCK;TOKEN", http.StatusPreconditionRequired)
			return
		}
		name, digits, _ := strings.Cut(values[0], ";")
		token, err := strconv.ParseUint(digits, 10, 63)
		its := all[name]
		if err != nil || its == nil || len(values) > 1 || len(digits) > digitsMax {
			http.Error(w, FenceHeader+" is not one LOCK;TOKEN of a lock that guards this service", http.StatusBadRequest)
			return
		}
		ctx, cancel := context.WithTimeout(r.Context(), enterMax)
		defer cancel()
		end, err := its.begin(ctx, token)
		if stale, ok := err.(*Stale); ok {
			http.Error(w, stale.Error(), http.StatusPreconditionFailed)
			return
		}
		if err != nil {
			http.Error(w, "requests of another holder have not ended", http.StatusServiceUnavailable)
			return
		}
		said := &statusWriter{ResponseWriter: w}
		// Also when the handler panics.
		defer func() {
			if end(said.status) != nil {
				panic(http.ErrAbortHandler)
			}
		}()
		next.ServeHTTP(said, r)
	})
}

// turns are the requests of one lock in their order: those of one token run together, and those of another token
// wait. With a store each waits for the one before, since each locks the stored token. Invariant: a token counts from
// the end of a request that the service has not refused. Until then nothing says that its sender may write at all, so
// smaller tokens behind it wait for that answer.
type turns struct {
	lock  string
	store FenceStore
	mutex sync.Mutex
	seen  uint64
	all   []*turn
	// Is closed at the next end of a request.
	changed chan struct{}
}

type turn struct {
	token uint64
}

func newTurns(lock string, store FenceStore) *turns {
	return &turns{lock: lock, store: store, changed: make(chan struct{})}
}

// begin waits for the requests before this one. Call end with the status of the answer, 0 for none; its error is that
// of the store. The error of begin is a *Stale, or that of ctx or the store.
func (t *turns) begin(ctx context.Context, token uint64) (end func(status int) error, err error) {
	mine, err := t.wait(ctx, token)
	if err != nil {
		return nil, err
	}
	seen, leave := uint64(0), func(uint64) error { return nil }
	if t.store != nil {
		if seen, leave, err = t.store.Enter(ctx, t.lock); err != nil {
			t.end(mine, 0)
			return nil, err
		}
	}
	if token < seen {
		err := leave(seen)
		t.end(mine, 0)
		if err != nil {
			return nil, err
		}
		return nil, &Stale{token, seen}
	}
	return func(status int) error {
		// A 4xx is a refusal, which has written nothing; any other end, also a panic, may have written.
		if status < 400 || status > 499 {
			seen = token
		}
		defer t.end(mine, seen)
		return leave(seen)
	}, nil
}

func (t *turns) wait(ctx context.Context, token uint64) (mine *turn, err error) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	if token < t.seen {
		return nil, &Stale{token, t.seen}
	}
	mine = &turn{token}
	t.all = append(t.all, mine)
	for err == nil && !t.isFirst(mine) {
		changed := t.changed
		t.mutex.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			err = ctx.Err()
		}
		t.mutex.Lock()
	}
	if err == nil && token < t.seen {
		err = &Stale{token, t.seen}
	}
	if err != nil {
		t.remove(mine)
	}
	return mine, err
}

// end is for all requests that have waited; seen is the largest token that counts.
func (t *turns) end(mine *turn, seen uint64) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	if seen > t.seen {
		t.seen = seen
	}
	t.remove(mine)
}

// isFirst is whether no request before it keeps it waiting.
func (t *turns) isFirst(mine *turn) bool {
	for _, other := range t.all {
		if other == mine {
			return true
		}
		if t.store != nil || other.token != mine.token {
			return false
		}
	}
	return false
}

func (t *turns) remove(mine *turn) {
	var others []*turn
	for _, other := range t.all {
		if other != mine {
			others = append(others, other)
		}
	}
	t.all = others
	close(t.changed)
	t.changed = make(chan struct{})
}

// statusWriter remembers the status of an answer.
type statusWriter struct {
	http.ResponseWriter
	status int
}

func (w *statusWriter) WriteHeader(status int) {
	// Those below 200 are followed by another.
	if w.status == 0 && status >= 200 {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *statusWriter) Write(data []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	return w.ResponseWriter.Write(data)
}

// Flush is for streams.
func (w *statusWriter) Flush() {
	if flusher, ok := w.ResponseWriter.(http.Flusher); ok {
		flusher.Flush()
	}
}

// Unwrap is for http.ResponseController.
func (w *statusWriter) Unwrap() http.ResponseWriter {
	return w.ResponseWriter
}

// FenceValue is the value of FenceHeader for a lock, by its name or path.
func FenceValue(lock string, token uint64) string {
	return headerName(lock) + ";" + strconv.FormatUint(token, 10)
}

func headerName(lock string) string {
	parts := strings.Split(lock, "/")
	for at, part := range parts {
		parts[at] = strings.ReplaceAll(url.QueryEscape(part), "+", "%20")
	}
	return strings.Join(parts, "/")
}
