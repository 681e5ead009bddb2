// What the client does when nodes fail: against nodes that answer as they are told.

package rowlock

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

func TestAClientByTheEnvironmentHasNodesTokenAndAuthorities(t *testing.T) {
	n := start(t, works)
	t.Setenv("ROWLOCK_API", n.URL+",http://127.0.0.1:1")
	t.Setenv("ROWLOCK_TOKEN", "t")
	t.Setenv("ROWLOCK_TLS_CA", "")
	c, err := New(FromEnv())
	if err != nil {
		t.Fatal(err)
	}
	take(t, c).Unlock()
	if seen := n.requests("/v1/leases"); len(seen) != 1 || seen[0].token != "Bearer t" {
		t.Error(seen)
	}
	t.Setenv("ROWLOCK_TLS_CA", "client_test.go")
	if _, err := New(FromEnv()); err == nil || !strings.Contains(err.Error(), "no certificate in client_test.go") {
		t.Error(err)
	}
}

func TestATimeoutSaysWhyTheLastNodeHasFailed(t *testing.T) {
	n := httptest.NewTLSServer(http.NotFoundHandler())
	n.Config.ErrorLog = log.New(io.Discard, "", 0)
	t.Cleanup(n.Close)
	c, err := New(Config{URLs: []string{n.URL}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	err = c.Lock("a", Options{}).Lock(ctx)
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "unknown authority") {
		t.Error(err)
	}
}

// slow is a node whose releases of the lock "a" wait until letGo, which may be called often.
func slow(t *testing.T) (n *node, letGo func()) {
	answered := make(chan struct{})
	var once sync.Once
	letGo = func() { once.Do(func() { close(answered) }) }
	n = start(t, func(r request, count int) (int, string) {
		if r.path == "/v1/locks/a/release" {
			<-answered
		}
		return works(r, count)
	})
	// Before the node is closed, which waits for its requests.
	t.Cleanup(letGo)
	return n, letGo
}

func TestAnAttemptOpensItsLeaseWhileTheReleaseOfItsLockIsUnderWay(t *testing.T) {
	n, letGo := slow(t)
	c := cluster(t, n)
	take(t, c).UnlockLater()
	next := make(chan error, 1)
	go func() { next <- c.Lock("a", Options{}).Lock(context.Background()) }()
	waitFor(t, "the second lease", func() bool { return len(n.requests("/v1/leases")) == 2 })
	if len(n.requests("/v1/locks/a/acquire")) != 1 {
		t.Fatal("it overtook the release")
	}
	letGo()
	if err := <-next; err != nil {
		t.Fatal(err)
	}
}

func TestAnAttemptDoesNotWaitForTheEndOfTheLeaseBefore(t *testing.T) {
	ended := make(chan struct{})
	n := start(t, func(r request, count int) (int, string) {
		if r.path == "/v1/leases/0x1" {
			<-ended
		}
		return works(r, count)
	})
	t.Cleanup(func() { close(ended) })
	c := cluster(t, n)
	began := now()
	for cycle := 0; cycle < 9; cycle++ {
		take(t, c).UnlockLater()
	}
	if took := now() - began; took > 8*time.Second {
		t.Fatal("each has waited a second", took)
	}
}

func TestAnUnwaitedReleaseIsRepeatedAndItsFailureIsReported(t *testing.T) {
	for _, story := range []struct {
		says    string
		answers []string
	}{
		{"", []string{"503 {}", "200 {}", `200 {"released": true}`}},
		{"a: rowlock: 403 no", []string{`403 {"title": "no"}`}},
		{"a: rowlock: the lease is over", []string{`200 {"released": false}`}},
		{"a: rowlock: the lease is over", []string{`404 {}`}},
	} {
		releases := 0
		n := start(t, func(r request, count int) (int, string) {
			if !strings.HasSuffix(r.path, "/release") {
				return works(r, count)
			}
			answer := story.answers[releases]
			releases++
			status, err := strconv.Atoi(answer[:3])
			if err != nil {
				t.Error(err)
			}
			return status, answer[4:]
		})
		var says string
		c, err := New(Config{URLs: []string{n.URL}, TTL: longTTL, OnUnreleased: func(lock string, err error) { says = lock + ": " + err.Error() }})
		if err != nil {
			t.Fatal(err)
		}
		answered := take(t, c).UnlockLater()
		if err := c.Flush(context.Background()); err != nil {
			t.Fatal(err)
		}
		if <-answered != (story.says == "") || says != story.says || releases != len(story.answers) {
			t.Errorf("%q instead of %q after %d requests", says, story.says, releases)
		}
	}
}

func TestAReleaseBeyondTheBoundOfUnwaitedOnesIsWaitedForAndSoAreAllByFlush(t *testing.T) {
	n, letGo := slow(t)
	c := cluster(t, n)
	// Before the first release: an attempt stands behind the releases.
	last := take(t, c)
	for done := 0; done < unwaitedMax; done++ {
		c.transport.unwaited[make(chan struct{})] = struct{}{}
	}
	over := make(chan struct{})
	go func() {
		last.UnlockLater()
		close(over)
	}()
	waitFor(t, "the release", func() bool { return len(n.requests("/v1/locks/a/release")) == 1 })
	short, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	if err := c.Flush(short); err == nil {
		t.Error("flushed before the answer")
	}
	select {
	case <-over:
		t.Error("it is not waited for")
	default:
	}
	letGo()
	<-over
	if len(c.transport.unwaited) != unwaitedMax {
		t.Error(len(c.transport.unwaited))
	}
}

func TestAReleaseThatIsNotWaitedForStaysInFrontOfTheNextRequestForItsLock(t *testing.T) {
	n, answer := slow(t)
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
	answer()
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
	began := now()
	if !l.Unlock() || l.Unlock() || l.Context().Err() == nil {
		t.Error("it is given back once")
	}
	good.ended(t, 1, began)
	sent := append(fails.requests("/v1/locks/a/b%20c/acquire"), good.requests("/v1/locks/a/b%20c/acquire")...)
	if len(sent) != 2 || sent[0].body["request_id"] != sent[1].body["request_id"] {
		t.Error(sent)
	}
	if sent[1].token != "Bearer secret" || sent[1].body["label"] != "l" {
		t.Error(sent[1])
	}
}

func TestARefusalIsNotRepeatedAndEndsTheLease(t *testing.T) {
	n := start(t, but("/acquire", 422, `{"title": "no", "detail": "the lock has 3 permits"}`))
	began := now()
	err := cluster(t, n).Lock("a", Options{Mode: Permits, Permits: 1, Limit: 4}).Lock(context.Background())
	var refused *Refused
	if !errors.As(err, &refused) || refused.Status != 422 || !strings.Contains(err.Error(), "3 permits") {
		t.Error(err)
	}
	n.ended(t, 1, began)
	sent := n.requests("/acquire")
	if len(sent) != 1 || sent[0].body["limit"] != 4.0 {
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
	began := now()
	if err := cluster(t, n).Lock("a", Options{OnWaiting: func(int) { cancel() }}).Lock(ctx); err != context.Canceled {
		t.Error(err)
	}
	n.ended(t, 1, began)
	// Granted, but nobody waits for it any more.
	ctx, cancel = context.WithCancel(context.Background())
	n = start(t, func(r request, count int) (int, string) {
		if strings.HasSuffix(r.path, "/acquire") {
			cancel()
		}
		return works(r, count)
	})
	l := cluster(t, n).Lock("a", Options{})
	began = now()
	if err := l.Lock(ctx); err != context.Canceled || l.Token() != 0 || l.Context().Err() == nil {
		t.Error(err, l.Token())
	}
	n.ended(t, 1, began)
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
	if err := cluster(t, n).Lock("a", Options{}).Lock(ctx); !errors.Is(err, context.DeadlineExceeded) {
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

func TestWhatIsNoAnswerOfThisAPIIsAskedAgainAtTheNextNode(t *testing.T) {
	good := start(t, works)
	for _, said := range strange {
		said := said
		other := start(t, func(request, int) (int, string) { return said.status, said.document })
		l := cluster(t, other, good).Lock("a", Options{})
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		if err := l.Lock(ctx); err != nil || l.Token() == 0 || len(other.requests("")) == 0 || !l.Unlock() {
			t.Error(said, err)
		}
		cancel()
	}
}

func TestTimeoutsAndAbortsWaitForNoNodeThatHangs(t *testing.T) {
	t.Parallel()
	opens := func(r request, count int) (int, string) {
		if r.path == "/v1/leases" {
			return works(r, count)
		}
		return hangs(r, count)
	}
	for name, answer := range map[string]script{"hangs": hangs, "opens": opens} {
		for _, end := range []error{context.DeadlineExceeded, context.Canceled} {
			answer, end := answer, end
			t.Run(name+" "+end.Error(), func(t *testing.T) {
				t.Parallel()
				c := cluster(t, start(t, answer))
				ctx, cancel := context.WithCancel(context.Background())
				if end == context.DeadlineExceeded {
					ctx, cancel = context.WithTimeout(context.Background(), 400*time.Millisecond)
				} else {
					time.AfterFunc(400*time.Millisecond, cancel)
				}
				defer cancel()
				began := now()
				err := c.Lock("a", Options{}).Lock(ctx)
				// A node may take a third of the lease's time for an answer.
				if passed := now() - began; err != end || passed > longTTL/6 {
					t.Error(err, passed)
				}
			})
		}
	}
}

func TestANodeThatHangsLeavesTimeForTheOthers(t *testing.T) {
	t.Parallel()
	hanging, good := start(t, hangs), start(t, works)
	// Less than a third of the lease's time, and half of it for each node.
	ctx, cancel := context.WithTimeout(context.Background(), longTTL*3/10)
	defer cancel()
	err := cluster(t, hanging, good).Lock("a", Options{}).Lock(ctx)
	if err != nil || len(hanging.requests("")) == 0 {
		t.Error(err, hanging.seen)
	}
}

func TestAPanicInOnWaitingLeavesNeitherALeaseNorAPlace(t *testing.T) {
	n := start(t, but("/acquire", 202, `{"state": "waiting", "position": 1}`))
	l := cluster(t, n).Lock("a", Options{OnWaiting: func(int) { panic("of the program") }})
	for round := 1; round <= 2; round++ {
		began := now()
		func() {
			defer func() {
				if recover() != "of the program" {
					t.Error("the panic is the program's")
				}
			}()
			_ = l.Lock(context.Background())
		}()
		n.ended(t, round, began)
		if len(n.requests("/v1/leases")) != round {
			t.Error("the lock is in use for ever", n.seen)
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
		asked, ended := len(first.requests("")), first.deletes()+leader.deletes()
		if !take(t, c).Unlock() {
			t.Fatal("it was not held")
		}
		// Its last request may still be under way.
		waitFor(t, "the end of the lease", func() bool { return first.deletes()+leader.deletes() > ended })
		if len(other.requests(""))+len(stranger.requests("")) > 0 {
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
	t.Parallel()
	hanging, good := start(t, hangs), start(t, works)
	c, ctx, body := cluster(t, hanging, good).transport, context.Background(), map[string]any{}
	const moment = 100 * time.Millisecond
	_, err := c.call(ctx, http.MethodPost, "/v1/leases", body, now()+moment, patience, isAnything)
	if !errors.Is(err, errTimedOut) || c.at.Load() != 0 || len(good.requests("")) != 0 {
		t.Fatal("it is not the next to be asked", err, good.seen)
	}
	found, err := c.call(ctx, http.MethodPost, "/v1/leases", body, now()+patience, 10*moment, isAnything)
	if err != nil || found.Status != 201 || c.at.Load() != 1 {
		t.Fatal(err, hanging.seen)
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
	lock := cluster(t, n).Lock("a;b", Options{})
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
