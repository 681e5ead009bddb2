// What the client does when nodes fail: against nodes of this file, which answer as they are told.

package rowlock

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"
)

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
}

// script answers a request; the count is that of all requests of the node.
type script func(r request, count int) (int, string)

func start(t *testing.T, answer script) *node {
	n := &node{}
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
		w.WriteHeader(status)
		fmt.Fprint(w, document)
	}))
	t.Cleanup(n.Close)
	return n
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

func (n *node) ended() bool {
	for _, one := range n.requests("") {
		if one.method == http.MethodDelete {
			return true
		}
	}
	return false
}

func works(r request, _ int) (int, string) {
	switch {
	case r.path == "/v1/leases":
		return 201, `{"lease": "0x1", "secret": "s", "ttl_ms": 600}`
	case strings.HasSuffix(r.path, "/acquire"), strings.HasSuffix(r.path, "/campaign"):
		return 200, `{"state": "held", "token": "9007199254740993", "valid_for_ms": 600}`
	case strings.HasSuffix(r.path, "/keepalive"):
		return 200, `{"valid_for_ms": 600}`
	}
	return 200, `{"released": true}`
}

func but(end string, status int, document string) script {
	return func(r request, count int) (int, string) {
		if strings.HasSuffix(r.path, end) {
			return status, document
		}
		return works(r, count)
	}
}

func cluster(t *testing.T, nodes ...*node) *Cluster {
	config := Config{Token: "secret", TTL: 600 * time.Millisecond}
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
	l := c.Lock("a", Options{})
	if err := l.Lock(context.Background()); err != nil {
		t.Fatal(err)
	}
	return l
}

func soon(t *testing.T, done <-chan struct{}) {
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Fatal("not in time")
	}
}

func TestAReleaseThatIsNotWaitedForStaysInFrontOfTheNextRequestForItsLock(t *testing.T) {
	letGo := make(chan struct{})
	n := start(t, func(r request, count int) (int, string) {
		if r.path == "/v1/locks/a/release" {
			<-letGo
		}
		return works(r, count)
	})
	c := cluster(t, n)
	l := take(t, c)
	released := l.UnlockLater()
	if l.Context().Err() == nil || <-l.UnlockLater() {
		t.Fatal("it is held after it was given back")
	}
	other := c.Lock("b", Options{})
	if err := other.Lock(context.Background()); err != nil || !other.Unlock() {
		t.Fatal("another lock waits", err)
	}
	short, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	if err := l.Lock(short); err == nil || len(n.requests("/v1/locks/a/acquire")) != 1 {
		t.Fatal("it overtook the release", err)
	}
	close(letGo)
	if err := l.Lock(context.Background()); err != nil || !<-released || !l.Unlock() {
		t.Fatal(err)
	}
}

func TestAnAttemptKeepsItsRequestIDAtTheNextNodeAndATokenAllItsDigits(t *testing.T) {
	fails, good := start(t, but("/acquire", 503, "{}")), start(t, works)
	l := cluster(t, fails, good).Lock("a/b c", Options{Label: "l"})
	if err := l.Lock(context.Background()); err != nil {
		t.Fatal(err)
	}
	if l.Token() != 9007199254740993 || l.Context().Err() != nil {
		t.Error(l.Token(), l.Context().Err())
	}
	if err := l.Lock(context.Background()); err != ErrHeld {
		t.Error(err)
	}
	if !l.Unlock() || l.Unlock() || l.Context().Err() == nil {
		t.Error("it is given back once")
	}
	sent := append(fails.requests("/v1/locks/a/b%20c/acquire"), good.requests("/v1/locks/a/b%20c/acquire")...)
	if len(sent) != 2 || sent[0].body["request_id"] != sent[1].body["request_id"] {
		t.Error(sent)
	}
	if sent[1].token != "Bearer secret" || sent[1].body["label"] != "l" || !good.ended() {
		t.Error(sent[1])
	}
}

func TestALockIsLostWhenNoNodeAnswersKeepAliveOrTheLeaseIsNotKnown(t *testing.T) {
	for _, status := range []int{503, 404} {
		n := start(t, but("/keepalive", status, "{}"))
		began := time.Now()
		ctx := take(t, cluster(t, n)).Context()
		soon(t, ctx.Done())
		if passed := time.Since(began); passed > 700*time.Millisecond {
			t.Error(status, passed)
		}
		sent := len(n.requests("/keepalive"))
		time.Sleep(300 * time.Millisecond)
		if more := len(n.requests("/keepalive")); more != sent {
			t.Error("asked after the end", more-sent)
		}
	}
}

func TestALockIsKeptWhileKeepAliveIsAnsweredByOneConnection(t *testing.T) {
	connections := map[string]bool{}
	var mutex sync.Mutex
	n := start(t, works)
	inner := n.Config.Handler
	n.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mutex.Lock()
		connections[r.RemoteAddr] = true
		mutex.Unlock()
		inner.ServeHTTP(w, r)
	})
	l := take(t, cluster(t, n))
	time.Sleep(1500 * time.Millisecond)
	if l.Context().Err() != nil || len(n.requests("/keepalive")) < 3 {
		t.Error("it is lost")
	}
	l.Unlock()
	mutex.Lock()
	defer mutex.Unlock()
	if len(connections) > 2 {
		t.Error(connections)
	}
}

func TestALockIsKnownToBeLostAtItsDeadlineThoughNothingRan(t *testing.T) {
	l := take(t, cluster(t, start(t, works)))
	held := l.current()
	held.lease.mutex.Lock()
	held.lease.deadline = now()
	held.lease.mutex.Unlock()
	if l.Context().Err() == nil || l.Unlock() {
		t.Error("it is past its deadline")
	}
}

func TestARefusalIsNotRepeatedAndEndsTheLease(t *testing.T) {
	n := start(t, but("/acquire", 422, `{"title": "no", "detail": "the lock has 3 permits"}`))
	err := cluster(t, n).Lock("a", Options{Mode: Permits, Permits: 1, Limit: 4}).Lock(context.Background())
	var refused *Refused
	if !errors.As(err, &refused) || refused.Status != 422 || !strings.Contains(err.Error(), "3 permits") {
		t.Error(err)
	}
	sent := n.requests("/acquire")
	if len(sent) != 1 || sent[0].body["limit"] != 4.0 || !n.ended() {
		t.Error(sent)
	}
}

func TestAPlaceThatWasTakenAwayIsAnErrorAndACandidacyThatMadeWayIsMadeAgain(t *testing.T) {
	n := start(t, but("/acquire", 200, `{"state": "gone"}`))
	if err := cluster(t, n).Lock("a", Options{}).Lock(context.Background()); !errors.Is(err, ErrLost) {
		t.Error(err)
	}
	ids := map[any]bool{}
	other := start(t, func(r request, count int) (int, string) {
		if strings.HasSuffix(r.path, "/campaign") {
			ids[r.body["request_id"]] = true
			if len(ids) == 1 {
				return 200, `{"state": "gone"}`
			}
		}
		return works(r, count)
	})
	candidate := cluster(t, other).Election("a/b").Candidate("v", Options{})
	if err := candidate.Lock(context.Background()); err != nil || len(ids) != 2 || !candidate.Unlock() {
		t.Error(err, ids)
	}
	if len(other.requests("/v1/elections/a%2Fb/resign")) != 1 {
		t.Error(other.seen)
	}
}

func TestAnAttemptThatIsAbortedOrTooLateEndsItsLeaseBeforeItReturns(t *testing.T) {
	n := start(t, func(r request, count int) (int, string) {
		if strings.HasSuffix(r.path, "/acquire") {
			time.Sleep(50 * time.Millisecond)
			return 202, `{"state": "waiting", "position": 1}`
		}
		return works(r, count)
	})
	ctx, cancel := context.WithCancel(context.Background())
	err := cluster(t, n).Lock("a", Options{OnWaiting: func(int) { cancel() }}).Lock(ctx)
	if err != context.Canceled || !n.ended() {
		t.Error(err)
	}
	// Granted, but nobody waits for it any more.
	ctx, cancel = context.WithCancel(context.Background())
	n = start(t, func(r request, count int) (int, string) {
		if strings.HasSuffix(r.path, "/acquire") {
			cancel()
		}
		return works(r, count)
	})
	l := cluster(t, n).Lock("a", Options{})
	if err := l.Lock(ctx); err != context.Canceled || l.Token() != 0 || l.Context().Err() == nil || !n.ended() {
		t.Error(err, l.Token())
	}
	n = start(t, but("/acquire", 202, `{"state": "waiting", "position": 1}`))
	late, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	if err := cluster(t, n).Lock("a", Options{}).Lock(late); err != context.DeadlineExceeded {
		t.Error(err)
	}
}

func TestWithoutNodesTheTimeRunsOut(t *testing.T) {
	n := start(t, works)
	n.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	if err := cluster(t, n).Lock("a", Options{}).Lock(ctx); err != context.DeadlineExceeded {
		t.Error(err)
	}
}

func TestSeveralLocksHaveATokenEachAndAreGivenBackOneByOne(t *testing.T) {
	n := start(t, but("/v1/locks/acquire", 200,
		`{"state": "held", "locks": [{"state": "held", "token": "7"}, {"state": "held", "token": "8"}]}`))
	l := cluster(t, n).Locks([]Part{{Name: "a"}, {Name: "ci/b", Mode: Shared}}, Options{Owner: "o"})
	if err := l.TryLock(context.Background()); err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(l.Tokens()) != "[7 8]" || !l.Unlock() {
		t.Error(l.Tokens())
	}
	sent := n.requests("/v1/locks/acquire")[0].body
	if sent["owner"] != "o" || sent["wait_ms"] != 0.0 || fmt.Sprint(sent["locks"]) != "[map[lock:a] map[lock:ci/b mode:shared]]" {
		t.Error(sent)
	}
	if len(n.requests("/v1/locks/a/release")) != 1 || len(n.requests("/v1/locks/ci/b/release")) != 1 {
		t.Error(n.seen)
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

func TestWhatIsNoAnswerOfThisAPIIsAskedAgainAtTheNextNode(t *testing.T) {
	good := start(t, works)
	for _, said := range strange {
		said := said
		other := start(t, func(request, int) (int, string) { return said.status, said.document })
		l := cluster(t, other, good).Lock("a", Options{})
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		if err := l.Lock(ctx); err != nil || l.Token() == 0 || len(other.requests("")) == 0 || !l.Unlock() {
			t.Error(said, err)
		}
		cancel()
	}
}

func TestALockIsLostAtItsDeadlineWhenKeepAliveIsAnsweredBySomethingElse(t *testing.T) {
	for _, said := range strange {
		n := start(t, but("/keepalive", said.status, said.document))
		began := time.Now()
		soon(t, take(t, cluster(t, n)).Context().Done())
		if passed := time.Since(began); passed < 500*time.Millisecond || passed > 2*time.Second {
			t.Error(said, passed)
		}
	}
}

func TestAPromiseOfMoreThanTheLeasesTimeCountsForThatTime(t *testing.T) {
	l := take(t, cluster(t, start(t, but("/keepalive", 200, `{"valid_for_ms": 9223372036854775807}`))))
	time.Sleep(700 * time.Millisecond)
	if l.Context().Err() != nil {
		t.Error("it is lost")
	}
	l.Silence()
	soon(t, l.Context().Done())
}

func TestTimeoutsAndAbortsWaitForNoNodeThatHangs(t *testing.T) {
	done := make(chan struct{})
	// Before the nodes are closed, which waits for their requests.
	defer close(done)
	hangs := func(request, int) (int, string) {
		<-done
		return 503, "{}"
	}
	opens := func(r request, count int) (int, string) {
		if r.path == "/v1/leases" {
			return works(r, count)
		}
		return hangs(r, count)
	}
	for _, answer := range []script{hangs, opens} {
		c := cluster(t, start(t, answer))
		for _, end := range []error{context.DeadlineExceeded, context.Canceled} {
			ctx, cancel := context.WithCancel(context.Background())
			if end == context.DeadlineExceeded {
				ctx, cancel = context.WithTimeout(context.Background(), 400*time.Millisecond)
			} else {
				time.AfterFunc(400*time.Millisecond, cancel)
			}
			began := time.Now()
			err := c.Lock("a", Options{}).Lock(ctx)
			if passed := time.Since(began); err != end || passed > 2*time.Second {
				t.Error(err, passed)
			}
			cancel()
		}
	}
	long := start(t, func(r request, count int) (int, string) {
		if r.path == "/v1/leases" {
			return 201, `{"lease": "0x1", "secret": "s", "ttl_ms": 10000}`
		}
		return works(r, count)
	})
	c, err := New(Config{URLs: []string{start(t, hangs).URL, long.URL}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	if err := c.Lock("a", Options{}).Lock(ctx); err != nil {
		t.Error("a node that hangs leaves no time for the others:", err)
	}
}

func TestAPanicInOnWaitingLeavesNeitherALeaseNorAPlace(t *testing.T) {
	n := start(t, but("/acquire", 202, `{"state": "waiting", "position": 1}`))
	l := cluster(t, n).Lock("a", Options{OnWaiting: func(int) { panic("of the program") }})
	for round := 1; round <= 2; round++ {
		func() {
			defer func() {
				if recover() != "of the program" {
					t.Error("the panic is the program's")
				}
			}()
			_ = l.Lock(context.Background())
		}()
		if !n.ended() || len(n.requests("/v1/leases")) != round {
			t.Error("the lease goes on, or the lock is in use for ever", n.seen)
		}
	}
}

func TestNamesAndAddressesThatWouldAskForSomethingElseAreRefused(t *testing.T) {
	for _, wrong := range [][]string{nil, {"ftp://a"}, {"host"}} {
		if _, err := New(Config{URLs: wrong}); err == nil {
			t.Error(wrong)
		}
	}
	c, ctx := cluster(t, start(t, works)), context.Background()
	for _, l := range []*Lock{
		c.Lock("../leases", Options{}), c.Lock("", Options{}), c.Locks([]Part{{Name: "a"}, {Name: "b//c"}}, Options{}),
		c.Election("..").Candidate("v", Options{}),
	} {
		if err := l.Lock(ctx); err == nil || !strings.Contains(err.Error(), "not a name") {
			t.Error(err)
		}
	}
}

func TestAWatchResumesAtTheNextNodeBehindTheLastIDAndSkipsComments(t *testing.T) {
	const first = ": hello\n\nevent: requested\r\ndata: {\"lock\":\r\ndata: \"/locks/a\"}\r\n\r\n" +
		"id: 41\nevent: granted\ndata: {}\n\nid: 42\n\n"
	ends := start(t, func(request, int) (int, string) { return 200, first })
	more := start(t, func(request, int) (int, string) { return 200, "event: released\ndata: {}\n\n" })
	var found []string
	enough := errors.New("enough")
	err := cluster(t, ends, more).Watch(context.Background(), WatchOptions{Lock: "/locks/a"}, func(e Event) error {
		found = append(found, e.ID+" "+e.Event+" "+string(e.Data))
		if e.Event == "released" {
			return enough
		}
		return nil
	})
	want := []string{" requested {\"lock\":\n\"/locks/a\"}", "41 granted {}", " released {}"}
	if err != enough || fmt.Sprint(found) != fmt.Sprint(want) {
		t.Errorf("%v %q", err, found)
	}
	if ends.seen[0].last != "" || more.seen[0].last != "42" {
		t.Error(ends.seen, more.seen)
	}
	refuses := start(t, func(request, int) (int, string) { return 401, `{"title": "no token"}` })
	var refused *Refused
	if err := cluster(t, refuses).Watch(context.Background(), WatchOptions{}, nil); !errors.As(err, &refused) {
		t.Error(err)
	}
}

func TestObserversAreToldOfEachLeaderOnce(t *testing.T) {
	answers := []string{
		`{"zxid": "0", "leader": null}`, `{"zxid": "0", "leader": null}`,
		`{"zxid": "5", "leader": {"value": "v", "token": "5", "since_ms": 1}}`,
		`{"zxid": "5", "leader": {"value": "w", "token": "5", "since_ms": 1}}`,
	}
	n := start(t, func(_ request, count int) (int, string) { return 200, answers[count-1] })
	enough := errors.New("enough")
	var told []string
	err := cluster(t, n).Election("e").Observe(context.Background(), func(leader *Leader) error {
		if leader == nil {
			told = append(told, "nobody")
			return nil
		}
		if told = append(told, leader.Value); leader.Value == "w" {
			return enough
		}
		return nil
	})
	if err != enough || fmt.Sprint(told) != "[nobody v w]" {
		t.Error(err, told)
	}
}

func TestAClientGoesToALeaderThatItKnowsAndOnlyNowAndThen(t *testing.T) {
	first, other, leader, stranger := start(t, works), start(t, works), start(t, works), start(t, works)
	// Whether each request to the first node has asked for the leader.
	cycle := func(c *Cluster) string {
		asked := len(first.requests(""))
		if !take(t, c).Unlock() || len(other.requests(""))+len(stranger.requests("")) > 0 {
			t.Fatal("asked elsewhere")
		}
		said := ""
		for _, one := range first.requests("")[asked:] {
			said += map[bool]string{true: "+", false: "-"}[one.header.Get("Prefer") == "leader"]
		}
		return said
	}
	first.leader = strings.TrimPrefix(leader.URL, "http://")
	c := cluster(t, first, other, leader)
	if said := cycle(c) + cycle(c); said != "+" || len(leader.requests("")) < 7 {
		t.Fatal(said, leader.seen)
	}
	// It dies, and is named again: at first that counts for nothing.
	leader.Close()
	if said := cycle(c); said == "" || strings.Contains(said, "+") {
		t.Fatal(said)
	}
	c.transport.staysUntil.Store(0)
	if said := cycle(c); !strings.HasPrefix(said, "+-") {
		t.Fatal(said)
	}
	first.leader = strings.TrimPrefix(stranger.URL, "http://")
	if said := cycle(cluster(t, first, other)); !strings.HasPrefix(said, "+-") {
		t.Fatal(said)
	}
	if said := cycle(cluster(t, first)); strings.Contains(said, "+") {
		t.Fatal("there is no other node", said)
	}
	made, err := New(Config{URLs: []string{"https://Db1.Example", "http://[::1]:8481/"}})
	if err != nil || fmt.Sprint(made.transport.addresses) != "[db1.example:443 [::1]:8481]" {
		t.Fatal(err, made.transport.addresses)
	}
}

func TestTheEndOfTheCallersTimeIsNoFailureOfTheNode(t *testing.T) {
	done := make(chan struct{})
	// Before the nodes are closed, which waits for their requests.
	defer close(done)
	hanging, good := start(t, func(request, int) (int, string) {
		<-done
		return 503, "{}"
	}), start(t, works)
	c, ctx, body := cluster(t, hanging, good).transport, context.Background(), map[string]any{}
	const short, long = 100 * time.Millisecond, 5 * time.Second
	if _, err := c.call(ctx, http.MethodPost, "/v1/leases", body, now()+short, long, isAnything); !errors.Is(err, errTimedOut) {
		t.Fatal(err)
	}
	found, err := c.call(ctx, http.MethodPost, "/v1/leases", body, now()+long, short, isAnything)
	if err != nil || found.Status != 201 || len(hanging.requests("")) != 2 || len(good.requests("")) != 1 {
		t.Fatal(err, hanging.seen, good.seen)
	}
}

func TestAFencedWriteIsRepeatedWithItsKeyAndALateOneIsStale(t *testing.T) {
	answers := []string{
		"200 {}", "503 {}", `200 {"stat": {"version": 3}}`, `412 {"title": "late", "stale": true}`, `412 {"title": "other"}`,
	}
	n := start(t, func(r request, count int) (int, string) {
		if !strings.HasPrefix(r.path, "/v1/znodes/") {
			return works(r, count)
		}
		status, document, _ := strings.Cut(answers[0], " ")
		answers = answers[1:]
		return map[string]int{"200": 200, "503": 503, "412": 412}[status], document
	})
	ctx := context.Background()
	cluster, _ := New(Config{URLs: []string{n.URL}})
	lock := cluster.Lock("a;b", Options{})
	if _, err := lock.Set(ctx, "/x", nil, AnyVersion); err != ErrStale {
		t.Fatal("without the lock", err)
	}
	if err := lock.TryLock(ctx); err != nil {
		t.Fatal(err)
	}
	defer lock.Unlock()
	if version, err := lock.Set(ctx, "/x y", []byte("data"), 2); version != 3 || err != nil {
		t.Fatal(version, err)
	}
	sent := n.requests("/v1/znodes/x%20y")
	last := sent[len(sent)-1].header
	isOne := sent[0].header.Get("Idempotency-Key") == last.Get("Idempotency-Key")
	if len(sent) != 3 || !isOne || sent[2].text != "data" || last.Get("If-Match") != `"2"` {
		t.Fatal(sent)
	}
	if fence := last.Get("Rowlock-Fence"); fence != "a%3Bb;9007199254740993" {
		t.Fatal(fence)
	}
	if err := lock.Delete(ctx, "/x y", 1); err != ErrStale {
		t.Fatal(err)
	}
	var refused *Refused
	if err := lock.Delete(ctx, "/x y", 1); !errors.As(err, &refused) || refused.Status != 412 {
		t.Fatal(err)
	}
}
