// When a lock is kept and when it is lost.

package rowlock

import (
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"
)

func TestALockIsLostWhenNoNodeAnswersKeepAliveOrTheLeaseIsNotKnown(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		status        int
		ttl, from, to time.Duration
		// Requests that may be under way at the end.
		more int
	}{
		{503, shortTTL, shortReliable, 2 * shortTTL, 1},
		// At the first answer, and not at nine tenths.
		{404, 2 * shortTTL, 2 * shortTTL / 3, shortTTL * 3 / 2, 0},
	} {
		c := c
		t.Run(fmt.Sprint(c.status), func(t *testing.T) {
			t.Parallel()
			n := start(t, butFor(c.ttl, "/keepalive", c.status, "{}"))
			began := now()
			ctx := take(t, cluster(t, n)).Context()
			// Nobody looks at the clock.
			soon(t, ctx.Done())
			if passed := now() - began; passed < c.from || passed > c.to {
				t.Error(passed)
			}
			sent := len(n.requests("/keepalive"))
			// Longer than a third of its time.
			time.Sleep(c.ttl * 7 / 18)
			if more := len(n.requests("/keepalive")) - sent; more > c.more {
				t.Error("asked after the end", sent, more)
			}
		})
	}
}

func TestALockIsKeptWhileKeepAliveIsAnsweredByOneConnection(t *testing.T) {
	t.Parallel()
	connections := map[string]bool{}
	var mutex sync.Mutex
	n := start(t, worksFor(shortTTL))
	inner := n.Config.Handler
	n.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mutex.Lock()
		connections[r.RemoteAddr] = true
		mutex.Unlock()
		inner.ServeHTTP(w, r)
	})
	l := take(t, cluster(t, n))
	began := now()
	waitFor(t, "keep-alive", func() bool {
		return now()-began > shortTTL*4/3 && len(n.requests("/keepalive")) >= 3
	})
	if l.Context().Err() != nil {
		t.Error("it is lost")
	}
	mutex.Lock()
	// A request that has got no answer in time takes its connection with it, and is repeated.
	if len(connections) >= len(n.requests("/keepalive")) {
		t.Error(connections)
	}
	mutex.Unlock()
	if !l.Unlock() {
		t.Error("it is not given back")
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

func TestALockIsLostAtItsDeadlineWhenKeepAliveIsAnsweredBySomethingElse(t *testing.T) {
	t.Parallel()
	for at, said := range strange {
		said := said
		t.Run(fmt.Sprint(at), func(t *testing.T) {
			t.Parallel()
			n := start(t, butFor(shortTTL, "/keepalive", said.status, said.document))
			began := now()
			l := take(t, cluster(t, n))
			// The deadline counts from a moment between these two.
			lostBy(t, l, now()+shortReliable)
			if passed := now() - began; passed < shortReliable {
				t.Error(said, passed)
			}
		})
	}
}

func TestAPromiseOfMoreThanTheLeasesTimeCountsForThatTime(t *testing.T) {
	t.Parallel()
	n := start(t, butFor(shortTTL, "/keepalive", 200, `{"valid_for_ms": 9223372036854775807}`))
	l := take(t, cluster(t, n))
	lease := l.current().lease
	first := lease.until()
	waitFor(t, "keep-alive", func() bool { return lease.until() != first })
	if lease.until() < first || l.Context().Err() != nil {
		t.Error("it is lost")
	}
	l.Silence()
	lostBy(t, l, now()+shortReliable)
}
