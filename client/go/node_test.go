// Nodes for the tests, which answer as they are told. Leases are long, and what must happen is waited for, so that
// a slow machine is no failure.

package rowlock

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"
)

const (
	longTTL = time.Minute
	// Of leases whose end is waited for: short, but seconds longer than a slow machine needs for a request.
	shortTTL = 9 * time.Second
	// What a client counts on of it.
	shortReliable = shortTTL * 9 / 10
	// For what must happen, on a machine of any speed.
	patience = time.Minute
)

// TestMain lets the tests that wait do so beside each other: they need no core of their own.
func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", "64"); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

type request struct {
	method, path, token, last string
	body                      map[string]any
	header                    http.Header
	text                      string
}

type node struct {
	*httptest.Server
	mutex sync.Mutex
	seen  []request
	// What it names as the leader's address.
	leader string
	closes sync.Once
	closed chan struct{}
}

// script answers a request; the count is that of all requests of the node.
type script func(r request, count int) (int, string)

func start(t *testing.T, answer script) *node {
	n := &node{closed: make(chan struct{})}
	n.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, _ := io.ReadAll(r.Body)
		seen := request{
			r.Method, r.URL.EscapedPath(), r.Header.Get("Authorization"), r.Header.Get("Last-Event-ID"), nil,
			r.Header, string(text),
		}
		_ = json.Unmarshal(text, &seen.body)
		n.mutex.Lock()
		n.seen = append(n.seen, seen)
		count := len(n.seen)
		n.mutex.Unlock()
		if n.leader != "" {
			w.Header().Set("Rowlock-Leader", n.leader)
		}
		status, document := answer(seen, count)
		if status == never {
			<-n.closed
			status = 503
		}
		w.WriteHeader(status)
		fmt.Fprint(w, document)
	}))
	t.Cleanup(n.Close)
	return n
}

// Close waits for the requests of the node, which answers them all now.
func (n *node) Close() {
	n.closes.Do(func() { close(n.closed) })
	n.Server.Close()
}

func (n *node) requests(end string) []request {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	var found []request
	for _, one := range n.seen {
		if strings.HasSuffix(one.path, end) {
			found = append(found, one)
		}
	}
	return found
}

func (n *node) deletes() int {
	count := 0
	for _, one := range n.requests("") {
		if one.method == http.MethodDelete {
			count++
		}
	}
	return count
}

// ended is for what has ended so many leases since a moment of now: it waits for the node, but for endMax at most.
func (n *node) ended(t *testing.T, count int, began time.Duration) {
	t.Helper()
	if now()-began >= endMax {
		waitFor(t, "the end of a lease", func() bool { return n.deletes() >= count })
	}
	if n.deletes() < count {
		t.Error("the lease goes on", n.requests(""))
	}
}

// never is in the place of a status: there is no answer.
const never = 0

func hangs(request, int) (int, string) {
	return never, "{}"
}

func works(r request, count int) (int, string) {
	return worksFor(longTTL)(r, count)
}

func worksFor(ttl time.Duration) script {
	const held = `{"state": "held", "token": "9007199254740993", "valid_for_ms": %d}`
	return func(r request, _ int) (int, string) {
		switch {
		case r.path == "/v1/leases":
			return 201, fmt.Sprintf(`{"lease": "0x1", "secret": "s", "ttl_ms": %d}`, ttl.Milliseconds())
		case strings.HasSuffix(r.path, "/acquire"), strings.HasSuffix(r.path, "/campaign"):
			return 200, fmt.Sprintf(held, ttl.Milliseconds())
		case r.path == "/v1/leases/0x1":
			return 204, ""
		case strings.HasSuffix(r.path, "/keepalive"):
			return 200, fmt.Sprintf(`{"valid_for_ms": %d}`, ttl.Milliseconds())
		}
		return 200, `{"released": true}`
	}
}

func but(end string, status int, document string) script {
	return butFor(longTTL, end, status, document)
}

func butFor(ttl time.Duration, end string, status int, document string) script {
	return func(r request, count int) (int, string) {
		if strings.HasSuffix(r.path, end) {
			return status, document
		}
		return worksFor(ttl)(r, count)
	}
}

// What a proxy answers in the place of a node, or a node of something else.
var strange = []struct {
	status   int
	document string
}{
	{200, `{}`}, {200, ``}, {200, `[]`}, {200, `<html>ready</html>`}, {204, ``}, {302, `{}`}, {502, `<html>bad</html>`},
	{200, `{"valid_for_ms": null, "state": "held", "token": null, "released": "yes", "held": 1, "ttl_ms": "600"}`},
	{200, `{"valid_for_ms": NaN, "state": "waiting", "position": "first"}`}, {202, `{"valid_for_ms": 1e999}`},
	{201, `{"lease": "0x1", "secret": "s", "ttl_ms": -1, "state": "free", "valid_for_ms": -5}`},
	{201, `{"lease": "0x1", "secret": "s", "ttl_ms": 9223372036854775807}`},
}

func cluster(t *testing.T, nodes ...*node) *Cluster {
	config := Config{Token: "secret", TTL: longTTL}
	for _, one := range nodes {
		config.URLs = append(config.URLs, one.URL)
	}
	made, err := New(config)
	if err != nil {
		t.Fatal(err)
	}
	return made
}

func take(t *testing.T, c *Cluster) *Lock {
	t.Helper()
	l := c.Lock("a", Options{})
	if err := l.Lock(context.Background()); err != nil {
		t.Fatal(err)
	}
	return l
}

func soon(t *testing.T, done <-chan struct{}) {
	t.Helper()
	select {
	case <-done:
	case <-time.After(patience):
		t.Fatal("not in time")
	}
}

func waitFor(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for until := now() + patience; !holds(); time.Sleep(5 * time.Millisecond) {
		if now() > until {
			t.Fatal("not in time: ", what)
		}
	}
}

// lostBy waits for a loss: at any look at this moment of now or later, the lock is lost.
func lostBy(t *testing.T, l *Lock, deadline time.Duration) {
	t.Helper()
	for ctx := l.Context(); ; time.Sleep(5 * time.Millisecond) {
		at := now()
		if ctx.Err() != nil {
			break
		}
		if at >= deadline {
			t.Fatal("it is held past its deadline")
		}
	}
	soon(t, l.Context().Done())
}

func isAnything(*answer) bool {
	return true
}
