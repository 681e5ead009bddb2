package rowlock

import (
	"context"
	"net/http"
	"sync"
	"time"
)

const (
	// How long the end of an attempt waits for the cluster; it goes on in the background.
	endMax = time.Second
	// Timers stand still while the machine sleeps: so long at most is the loss of a lease not noticed then.
	lookEvery = time.Second
	// No cluster gives a longer lease: its time in nanoseconds is a Duration.
	ttlMaxMs = int64(forever / time.Millisecond)
)

// lease is a session at the cluster. Its goroutine, if it has one, asks for keep-alive at a third of its time.
type lease struct {
	transport *transport
	secret    string
	path      string
	ttl       time.Duration

	mutex sync.Mutex
	// A moment of now from which nothing of this lease may be relied on.
	deadline time.Duration
	// When what it holds is taken away.
	revoked time.Duration
	heard   heard
	// Of what it holds.
	measured *measure
	// ended is cancelled when it is over, or must be taken to be.
	ended context.Context
	end   context.CancelFunc
	// stopped is cancelled when no keep-alive is to be asked for any more.
	stopped context.Context
	stop    context.CancelFunc
}

// reliable is what its client counts on of a time that the cluster promised: clocks do not run equally fast.
func reliable(promised time.Duration) time.Duration {
	return promised - promised/10
}

func openLease(ctx context.Context, t *transport, ttl, until time.Duration, keeps bool) (*lease, error) {
	body := map[string]any{"ttl_ms": ttl.Milliseconds()}
	// The moment from which the answer counts is taken before the call, so retries only shorten it.
	sent := now()
	each := shortest(ttl/3, t.share(ctx, until))
	found, err := t.call(ctx, http.MethodPost, "/v1/leases", body, until, each, isLease)
	if err != nil {
		return nil, err
	}
	given := time.Duration(found.TTLMs) * time.Millisecond
	l := &lease{transport: t, secret: found.Secret, path: "/v1/leases/" + found.Lease, ttl: given}
	l.deadline = sent + reliable(given)
	l.revoked, l.heard.news = forever, make(chan Question, 1)
	l.ended, l.end = context.WithCancel(context.Background())
	l.stopped, l.stop = context.WithCancel(l.ended)
	if keeps {
		go l.keepAlive()
	}
	return l, nil
}

func (l *lease) until() time.Duration {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	return l.deadline
}

// lost looks at the clock, so it is right also when the goroutine had no time to run.
func (l *lease) lost() bool {
	if now() >= l.until() {
		l.lose()
	}
	return l.ended.Err() != nil
}

func (l *lease) lose() {
	l.endHold(Lost)
	l.end()
}

// measureHold begins when the lock is held.
func (l *lease) measureHold(m *measure) {
	l.mutex.Lock()
	l.measured = m
	l.mutex.Unlock()
	if l.lost() {
		l.endHold(Lost)
	}
}

// endHold ends a hold that has not ended: in the past, if the lease has ended while the program stood still.
func (l *lease) endHold(outcome Outcome) {
	l.mutex.Lock()
	m, at := l.measured, shortest(now(), l.deadline)
	l.mutex.Unlock()
	m.endHold(outcome, at)
}

// giveBack frees everything of it. When no node answers, it ends by itself.
func (l *lease) giveBack() {
	until := l.until()
	l.end()
	done := make(chan struct{})
	go func() {
		defer close(done)
		body := map[string]any{"secret": l.secret}
		// Nobody can do anything about an error.
		_, _ = l.transport.call(context.Background(), http.MethodDelete, l.path, body, until, l.ttl/3, isEnded)
	}()
	select {
	case <-done:
	case <-time.After(endMax):
	}
}

func (l *lease) keepAlive() {
	due := now() + l.ttl/3
	for !l.lost() {
		// Silenced, it only waits for its end.
		ctx, wake := l.stopped, due
		if l.stopped.Err() != nil {
			ctx, wake = l.ended, l.until()
		}
		if left := shortest(wake, l.until()) - now(); left > 0 {
			pause(ctx, shortest(left, lookEvery))
			continue
		}
		// Invariant: nothing is sent past the deadline, and a node that is silent leaves time for others.
		sent := now()
		due = sent + l.ttl/3
		l.ask(l.stopped, sent)
	}
}

func (l *lease) ask(ctx context.Context, sent time.Duration) {
	body := map[string]any{"secret": l.secret}
	path := l.path + "/keepalive"
	found, err := l.transport.call(ctx, http.MethodPost, path, body, l.until(), l.ttl/6, isKept)
	if err != nil {
		// No node, a refusal, or the end: what is known of the lease holds until its deadline.
		return
	}
	if found.Status == http.StatusNotFound {
		l.lose()
		return
	}
	l.hear(found, sent)
	l.mutex.Lock()
	defer l.mutex.Unlock()
	// Invariant: a deadline that has passed is never moved, and none lies further ahead than the lease's time.
	if now() < l.deadline {
		valid := l.ttl
		if found.ValidForMs < valid.Milliseconds() {
			valid = time.Duration(found.ValidForMs) * time.Millisecond
		}
		l.deadline = shortest(sent+reliable(valid), l.revoked)
	}
}

// hear takes the questions in the answer to a request that was sent at a moment of now.
func (l *lease) hear(found *answer, sent time.Duration) {
	left := l.heard.hear(found.Asked)
	if left == forever {
		return
	}
	l.mutex.Lock()
	defer l.mutex.Unlock()
	// Invariant: what is taken away is lost before. The deadline of a question only moves nearer.
	l.revoked = shortest(l.revoked, sent+left)
	l.deadline = shortest(l.deadline, l.revoked)
}

func isLease(found *answer) bool {
	isWhole := found.Secret != "" && found.Lease != ""
	return found.Status == http.StatusCreated && isWhole && found.TTLMs > 0 && found.TTLMs <= ttlMaxMs
}

func isKept(found *answer) bool {
	return found.Status == http.StatusNotFound || found.Status == http.StatusOK && found.ValidForMs > 0
}

func isEnded(found *answer) bool {
	return found.Status == http.StatusNoContent || found.Status == http.StatusNotFound
}

// lockContext is cancelled when the lease ends. Its Err looks at the clock.
type lockContext struct {
	context.Context
	lease *lease
}

func (ctx lockContext) Err() error {
	ctx.lease.lost()
	return ctx.Context.Err()
}
