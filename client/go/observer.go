package rowlock

import (
	"context"
	"errors"
	"sync"
	"time"
)

const (
	// Metrics names of one client; otherName stands for those beyond.
	namesMax    = 100
	defaultName = "default"
	otherName   = "other"
)

// Observer gets the waits and holds of a Cluster, from the goroutines that end them. It must not block or panic.
type Observer interface {
	// Waiting is called when an acquire begins; Waited follows in any case. name is the metrics name.
	Waiting(ctx context.Context, name, lock string)
	// Waited is called when an acquire has ended, with its context: for a span.
	Waited(ctx context.Context, wait Wait)
	// Held is called when a hold has ended.
	Held(hold Hold)
}

// Outcome says how a wait or a hold has ended.
type Outcome string

const (
	// Granted ends the wait of a hold.
	Granted Outcome = "granted"
	// WasBusy is the outcome of a TryLock that found the lock taken.
	WasBusy Outcome = "busy"
	// TimedOut is the outcome at the deadline of a context, or where no node has answered in time.
	TimedOut Outcome = "timed_out"
	// Lost is that of the queue position, or of the lock.
	Lost Outcome = "lost"
	// Canceled is the outcome of a context that was canceled.
	Canceled Outcome = "canceled"
	// WasRefused is a refusal of the cluster.
	WasRefused Outcome = "refused"
	// Failed is any other error, and a panic of Options.OnWaiting.
	Failed Outcome = "failed"
	// Released ends a hold by the program.
	Released Outcome = "released"
)

// Wait is an acquire that has ended.
type Wait struct {
	// Name is the metrics name.
	Name string
	// Lock is the lock itself, or several: for spans, not for metrics.
	Lock string
	// Contended means that the lock was found taken; false also where no node has said so.
	Contended bool
	Outcome   Outcome
	// Waited is the time from the call to its end.
	Waited time.Duration
}

// Hold is a hold that has ended.
type Hold struct {
	Name, Lock string
	// Outcome is Released or Lost.
	Outcome Outcome
	// Held is the time from the grant to the release or the loss.
	Held time.Duration
}

// names are the metrics names of a client.
type names struct {
	mutex sync.Mutex
	known map[string]bool
}

// bound is the name, the default for an empty one, and otherName beyond the first namesMax.
func (n *names) bound(name string) string {
	switch name {
	case "", defaultName:
		return defaultName
	case otherName:
		return otherName
	}
	n.mutex.Lock()
	defer n.mutex.Unlock()
	if !n.known[name] {
		if len(n.known) >= namesMax {
			return otherName
		}
		if n.known == nil {
			n.known = map[string]bool{}
		}
		n.known[name] = true
	}
	return name
}

// measure is the wait and the hold of one attempt; nil without an observer.
type measure struct {
	observer   Observer
	name, lock string
	began      time.Duration
	contended  bool

	mutex sync.Mutex
	// Of a hold that has not ended.
	isHeld bool
	since  time.Duration
}

func (c *Cluster) measure(ctx context.Context, l *Lock) *measure {
	if c.observer == nil {
		return nil
	}
	m := &measure{observer: c.observer, name: c.names.bound(l.metricsName), lock: l.name, began: now()}
	c.observer.Waiting(ctx, m.name, m.lock)
	return m
}

// answered takes an answer to a request for the lock.
func (m *measure) answered(found *answer) {
	if m != nil && (found.State == "waiting" || found.Contended) {
		m.contended = true
	}
}

// endWait ends the wait; without an error the hold begins at the same moment.
func (m *measure) endWait(ctx context.Context, err error) {
	if m == nil {
		return
	}
	at, outcome := now(), outcomeOf(err)
	contended := m.contended || outcome == WasBusy
	m.observer.Waited(ctx, Wait{m.name, m.lock, contended, outcome, at - m.began})
	if err == nil {
		m.mutex.Lock()
		defer m.mutex.Unlock()
		m.isHeld, m.since = true, at
	}
}

// endHold ends the hold, once, at a moment of now.
func (m *measure) endHold(outcome Outcome, at time.Duration) {
	if m == nil {
		return
	}
	m.mutex.Lock()
	isHeld, since := m.isHeld, m.since
	m.isHeld = false
	m.mutex.Unlock()
	if isHeld {
		m.observer.Held(Hold{m.name, m.lock, outcome, longest(0, at-since)})
	}
}

func outcomeOf(err error) Outcome {
	var busy *Busy
	var refused *Refused
	switch {
	case err == nil:
		return Granted
	case errors.As(err, &busy):
		return WasBusy
	case errors.Is(err, errTimedOut), errors.Is(err, context.DeadlineExceeded):
		return TimedOut
	case errors.Is(err, ErrLost):
		return Lost
	case errors.Is(err, context.Canceled):
		return Canceled
	case errors.As(err, &refused):
		return WasRefused
	}
	return Failed
}
