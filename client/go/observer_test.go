// What an observer gets, and locks that the program keeps by itself.

package rowlock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"
)

// record keeps all that an observer gets.
type record struct {
	mutex      sync.Mutex
	inProgress int
	names      []string
	waits      []Wait
	holds      []Hold
}

func (r *record) Waiting(_ context.Context, name, _ string) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.inProgress++
	r.names = append(r.names, name)
}

func (r *record) Waited(_ context.Context, wait Wait) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.inProgress--
	r.waits = append(r.waits, wait)
}

func (r *record) Held(hold Hold) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.holds = append(r.holds, hold)
}

func (r *record) seen() (int, []Wait, []Hold) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	return r.inProgress, r.waits, r.holds
}

func observed(t *testing.T, n *node) (*Cluster, *record) {
	c, seen := cluster(t, n), &record{}
	c.observer = seen
	return c, seen
}

const inQueue = `{"state": "waiting", "position": 2}`

func TestAWaitEndsAtTheGrantAndAHoldAtTheRelease(t *testing.T) {
	t.Parallel()
	c, seen := observed(t, start(t, func(r request, count int) (int, string) {
		if strings.HasSuffix(r.path, "/acquire") {
			time.Sleep(500 * time.Millisecond)
			return 200, `{"state": "held", "token": "7", "contended": true}`
		}
		return works(r, count)
	}))
	l, began := c.Lock("a/1", Options{MetricsName: "a"}), now()
	if err := l.Lock(context.Background()); err != nil {
		t.Fatal(err)
	}
	granted := now()
	if inProgress, _, holds := seen.seen(); inProgress != 0 || len(holds) != 0 {
		t.Error(inProgress, holds)
	}
	time.Sleep(400 * time.Millisecond)
	released := now()
	l.Unlock()
	ended := now()
	_, waits, holds := seen.seen()
	waited, isHeld := waits[0].Waited, holds[0].Held
	if (waits[0] != Wait{"a", "a/1", true, Granted, waited}) || (holds[0] != Hold{"a", "a/1", Released, isHeld}) {
		t.Error(waits, holds)
	}
	if waited < 500*time.Millisecond || waited > granted-began {
		t.Error("waited", waited)
	}
	if isHeld < released-granted || waited+isHeld > ended-began {
		t.Error("the wait and the hold share no moment", waited, isHeld)
	}
}

func TestAPositionInTheQueueIsContentionAndAGrantAtOnceIsNone(t *testing.T) {
	t.Parallel()
	asked := 0
	c, seen := observed(t, start(t, func(r request, count int) (int, string) {
		if strings.HasSuffix(r.path, "/acquire") {
			if asked++; asked < 3 {
				return 202, inQueue
			}
		}
		return works(r, count)
	}))
	take(t, c).Unlock()
	take(t, c).Unlock()
	if _, waits, _ := seen.seen(); !waits[0].Contended || waits[1].Contended || waits[0].Name != "default" {
		t.Error(waits)
	}
}

func TestEachAcquireHasOneOutcomeAndLeavesTheWaiting(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	late, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	canceled, stop := context.WithCancel(ctx)
	for _, story := range []struct {
		status    int
		document  string
		ctx       context.Context
		onWaiting func(int)
		expected  string
	}{
		{200, `{"state": "busy"}`, ctx, nil, "busy true"},
		{202, inQueue, late, nil, "timed_out true"},
		{404, `{}`, ctx, nil, "lost false"},
		{422, `{"title": "no"}`, ctx, nil, "refused false"},
		{202, inQueue, ctx, func(int) { panic("no") }, "failed true"},
		{202, inQueue, canceled, func(int) { stop() }, "canceled true"},
	} {
		c, seen := observed(t, start(t, func(r request, count int) (int, string) {
			time.Sleep(100 * time.Millisecond)
			return but("/acquire", story.status, story.document)(r, count)
		}))
		func() {
			defer func() { _ = recover() }()
			l := c.Lock("a", Options{OnWaiting: story.onWaiting})
			if story.expected == "busy true" {
				_ = l.TryLock(story.ctx)
			} else if err := l.Lock(story.ctx); err == nil {
				t.Error("it is held")
			}
		}()
		inProgress, waits, holds := seen.seen()
		if inProgress != 0 || len(waits) != 1 || len(holds) != 0 {
			t.Fatal(story.expected, inProgress, waits, holds)
		}
		if found := fmt.Sprint(waits[0].Outcome, " ", waits[0].Contended); found != story.expected {
			t.Errorf("%q instead of %q", found, story.expected)
		}
		if waited := waits[0].Waited; story.ctx == late && (waited < 2500*time.Millisecond || waited > 9*time.Second) {
			t.Error(waited)
		}
	}
}

func TestTheEndOfAnAttemptsLeaseIsNoPartOfItsWait(t *testing.T) {
	t.Parallel()
	c, seen := observed(t, start(t, func(r request, count int) (int, string) {
		switch {
		case strings.HasSuffix(r.path, "/acquire"):
			return 200, `{"state": "busy"}`
		case r.path == "/v1/leases/0x1":
			return never, ""
		}
		return works(r, count)
	}))
	began := now()
	var busy *Busy
	if err := c.Lock("a", Options{}).TryLock(context.Background()); !errors.As(err, &busy) {
		t.Fatal(err)
	}
	if _, waits, _ := seen.seen(); now()-began < endMax || waits[0].Waited > now()-began-endMax/2 {
		t.Error(waits)
	}
}

func TestALostHoldEndsAtTheDeadlineAlsoWhenTheProgramNoticesItLate(t *testing.T) {
	t.Parallel()
	c, seen := observed(t, start(t, worksFor(shortTTL)))
	kept, byHand := take(t, c), c.Lock("b", Options{NoKeepAlive: true})
	if err := byHand.Lock(context.Background()); err != nil {
		t.Fatal(err)
	}
	kept.Silence()
	began := now()
	waitFor(t, "the loss", func() bool {
		_, _, holds := seen.seen()
		return len(holds) > 0 && now() > began+shortTTL
	})
	// The program notices the second loss late.
	time.Sleep(time.Second)
	if _, _, holds := seen.seen(); len(holds) != 1 {
		t.Fatal("something has looked at the second", holds)
	}
	if kept.Context().Err() == nil || byHand.Context().Err() == nil {
		t.Error("it is held past its deadline")
	}
	kept.Unlock()
	byHand.Unlock()
	_, _, holds := seen.seen()
	if len(holds) != 2 {
		t.Fatal(holds)
	}
	for _, hold := range holds {
		if hold.Outcome != Lost || hold.Held > shortReliable || hold.Held < shortReliable-3*time.Second {
			t.Error(hold)
		}
	}
}

func TestNamesBeyondTheBoundCountAsOne(t *testing.T) {
	t.Parallel()
	c, seen := observed(t, start(t, works))
	for at := 0; at < namesMax+2; at++ {
		c.measure(context.Background(), c.Lock("a", Options{MetricsName: fmt.Sprint("job-", at)}))
	}
	for _, name := range []string{"job-0", ""} {
		c.measure(context.Background(), c.Lock("a", Options{MetricsName: name}))
	}
	last := fmt.Sprint("job-", namesMax-1)
	if found := fmt.Sprint(seen.names[namesMax-1:]); found != fmt.Sprint([]string{last, "other", "other", "job-0", "default"}) {
		t.Error(found)
	}
	several := c.Locks([]Part{{Name: "a"}, {Name: "b"}}, Options{})
	leads := c.Election("e").Candidate("v", Options{MetricsName: "leader"})
	if several.name != "a, b" || leads.name != "@elections/e" || leads.metricsName != "leader" {
		t.Error(several.name, leads.name)
	}
}

func TestALockWithoutAGoroutineLivesByTheProgramsOwnKeepAlive(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	n := start(t, worksFor(shortTTL))
	l := cluster(t, n).Lock("a", Options{NoKeepAlive: true})
	if l.KeepAlive(ctx) {
		t.Error("nothing is held yet")
	}
	if err := l.Lock(ctx); err != nil {
		t.Fatal(err)
	}
	asked, calls := len(n.requests("/keepalive")), 0
	for began := now(); now() < began+shortTTL*3/2; time.Sleep(shortTTL / 3) {
		if calls++; !l.KeepAlive(ctx) || l.Context().Err() != nil {
			t.Fatal("it is lost")
		}
	}
	if found := len(n.requests("/keepalive")); found != asked+calls {
		t.Error("a goroutine asks as well", found, asked, calls)
	}
	last := now()
	if !l.KeepAlive(ctx) {
		t.Fatal("it is lost")
	}
	waitFor(t, "the loss", func() bool { return l.Context().Err() != nil })
	if passed := now() - last; passed < shortReliable {
		t.Error(passed)
	}
	if l.KeepAlive(ctx) {
		t.Error("a lock that was lost comes back")
	}
}

func TestAWaitWithoutAGoroutineKeepsItsLeaseByItsOwnRequests(t *testing.T) {
	t.Parallel()
	asked := 0
	n := start(t, func(r request, count int) (int, string) {
		if strings.HasSuffix(r.path, "/acquire") {
			if asked++; asked < 6 {
				time.Sleep(shortTTL / 3)
				return 202, inQueue
			}
		}
		return worksFor(shortTTL)(r, count)
	})
	l := cluster(t, n).Lock("a", Options{NoKeepAlive: true})
	if err := l.Lock(context.Background()); err != nil || l.Context().Err() != nil {
		t.Fatal(err)
	}
	l.Unlock()
}
