package rowlock

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	// One request waits so long at most; the node itself answers after half of the lease's time.
	waitMax = 30 * time.Second
	// TryLock takes no place in the queue, but a node has to answer.
	atOnce = 15 * time.Second
	// One request waits so long at least, unless less is left.
	waitMin = 50 * time.Millisecond
)

// Lock is a lock, several of them, or the lead of an election. It can be taken again after it was given back
// or lost. It is safe for concurrent use, but one goroutine at a time can take it.
type Lock struct {
	cluster *Cluster
	// Where it is asked for.
	ask  string
	body map[string]any
	// Addresses below which each is released and verified, in the order of the tokens.
	free, verify []string
	// A place that was taken away is asked for again.
	again     bool
	onWaiting func(int)
	err       error
	// For the observer.
	name, metricsName string
	// A goroutine keeps the lease.
	keeps bool

	mutex sync.Mutex
	inUse bool
	held  *held
}

type held struct {
	lease  *lease
	tokens []string
	// Under the mutex of its Lock.
	isLetGo bool
}

// Lock makes a handle of the lock of this name, whose levels are separated by slashes. A name that begins with
// a slash is the path of a znode. Nothing is sent.
func (c *Cluster) Lock(name string, options Options) *Lock {
	part := Part{Name: name, Mode: options.Mode, Permits: options.Permits, Limit: options.Limit}
	l := c.locks([]Part{part}, options)
	for key, value := range part.body() {
		if key != "lock" {
			l.body[key] = value
		}
	}
	path, err := address(name)
	l.ask, l.err = "/v1/locks/"+path+"/acquire", err
	return l
}

// Locks makes a handle of several locks, of which all places are taken by one change, or none. Mode, Permits
// and Limit of the options do not count.
func (c *Cluster) Locks(parts []Part, options Options) *Lock {
	l := c.locks(parts, options)
	var list []map[string]any
	for _, part := range parts {
		list = append(list, part.body())
	}
	l.body["locks"] = list
	l.ask = "/v1/locks/acquire"
	return l
}

func (c *Cluster) locks(parts []Part, options Options) *Lock {
	l := &Lock{cluster: c, body: map[string]any{}, onWaiting: options.OnWaiting}
	l.metricsName, l.keeps = options.MetricsName, !options.NoKeepAlive
	var names []string
	for _, part := range parts {
		names = append(names, part.Name)
		path, err := address(part.Name)
		if err != nil {
			l.err = err
		}
		l.free = append(l.free, "/v1/locks/"+path+"/release")
		l.verify = append(l.verify, "/v1/locks/"+path+"/verify")
	}
	l.name = strings.Join(names, ", ")
	put(l.body, "owner", options.Owner)
	put(l.body, "label", options.Label)
	return l
}

func (part Part) body() map[string]any {
	body := map[string]any{"lock": part.Name}
	put(body, "mode", string(part.Mode))
	if part.Permits != 0 {
		body["permits"] = part.Permits
	}
	if part.Limit != 0 {
		body["limit"] = part.Limit
	}
	return body
}

func put(body map[string]any, name, value string) {
	if value != "" {
		body[name] = value
	}
}

// Lock waits for the lock until ctx ends, or for a second longer where nodes do not answer. On an error no place in the queue is left behind: that of ctx,
// ErrLost, ErrHeld or a *Refused.
func (l *Lock) Lock(ctx context.Context) error {
	return l.take(ctx, true)
}

// TryLock takes the lock if it is free; otherwise the error is a *Busy. It takes no place in the queue.
func (l *Lock) TryLock(ctx context.Context) error {
	return l.take(ctx, false)
}

func (l *Lock) take(ctx context.Context, waits bool) error {
	if l.err != nil {
		return l.err
	}
	l.mutex.Lock()
	if l.inUse || (l.held != nil && !l.held.lease.lost()) {
		l.mutex.Unlock()
		return ErrHeld
	}
	l.inUse, l.held = true, nil
	l.mutex.Unlock()
	var taken *held
	// Also when OnWaiting panics.
	defer func() {
		l.mutex.Lock()
		defer l.mutex.Unlock()
		l.inUse, l.held = false, taken
	}()
	var err error
	taken, err = l.attempt(ctx, waits, l.cluster.measure(ctx, l))
	return err
}

var errPanicked = errors.New("rowlock: OnWaiting has panicked")

func (l *Lock) attempt(ctx context.Context, waits bool, m *measure) (*held, error) {
	until := forever
	if !waits {
		until = now() + atOnce
	}
	lease, err := openLease(ctx, l.cluster.transport, l.cluster.ttl, until, l.keeps)
	if err != nil {
		m.endWait(ctx, err)
		return nil, err
	}
	err = errPanicked
	defer func() {
		m.endWait(ctx, err)
		if err != nil {
			lease.giveBack()
		} else {
			lease.measureHold(m)
		}
	}()
	// The lease is opened meanwhile: an earlier release of these locks costs no round trip.
	l.cluster.transport.behind(ctx, l.free, until)
	var taken *held
	if taken, err = l.await(ctx, lease, m, waits, until); err != nil {
		return nil, err
	}
	return taken, nil
}

func (l *Lock) await(ctx context.Context, lease *lease, m *measure, waits bool, until time.Duration) (*held, error) {
	body := map[string]any{"secret": lease.secret, "request_id": requestID()}
	for key, value := range l.body {
		body[key] = value
	}
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if !l.keeps {
			// Each answer comes within half of the lease's time.
			lease.ask(ctx, now())
		}
		if lease.lost() {
			return nil, ErrLost
		}
		share := longest(waitMin, l.cluster.transport.share(ctx, until))
		// Invariant: all requests of an attempt wait, or none does; the server takes them for one then.
		wait := time.Duration(0)
		if waits {
			wait = shortest(waitMax, lease.ttl/2, share)
			if deadline, ok := ctx.Deadline(); ok {
				wait = shortest(wait, time.Until(deadline))
			}
			wait = longest(wait, time.Millisecond)
		}
		body["wait_ms"] = wait.Milliseconds()
		bound := shortest(until, lease.until())
		each := wait + shortest(answerMax, lease.ttl/3, share)
		found, err := l.cluster.transport.call(ctx, http.MethodPost, l.ask, body, bound, each, l.isStanding)
		if errors.Is(err, errTimedOut) && now() < until {
			// The lease's own goroutine may have moved its deadline meanwhile.
			continue
		}
		if err != nil {
			return nil, err
		}
		m.answered(found)
		if found.State == "gone" && l.again {
			body["request_id"] = requestID()
			pause(ctx, roundPause)
			continue
		}
		if done, err := l.judge(lease, found); done != nil || err != nil {
			if err == nil {
				err = ctx.Err()
			}
			return done, err
		}
	}
}

// judge says what an answer means; nothing yet, if both results are nil.
func (l *Lock) judge(lease *lease, found *answer) (*held, error) {
	switch {
	case found.Status == http.StatusNotFound || found.State == "gone":
		return nil, fmt.Errorf("the place in the queue was taken away: %w", ErrLost)
	case found.State == "busy":
		holder := found.Holder
		for _, part := range found.Locks {
			if part.State == "busy" {
				holder = part.Holder
			}
		}
		return nil, &Busy{holder}
	case found.State == "held":
		if lease.lost() {
			return nil, ErrLost
		}
		tokens := []string{found.Token}
		if len(found.Locks) > 0 {
			tokens = nil
		}
		for _, part := range found.Locks {
			tokens = append(tokens, part.Token)
		}
		lease.hear(found, now())
		return &held{lease: lease, tokens: tokens}, nil
	}
	if l.onWaiting != nil {
		l.onWaiting(found.Position)
	}
	return nil, nil
}

func (l *Lock) isStanding(found *answer) bool {
	switch found.State {
	case "held":
		tokens := []string{found.Token}
		if len(found.Locks) > 0 {
			tokens = nil
		}
		for _, part := range found.Locks {
			tokens = append(tokens, part.Token)
		}
		return found.Status == http.StatusOK && len(tokens) == len(l.free) && areNumbers(tokens)
	case "waiting":
		return found.Status == http.StatusAccepted
	case "busy", "gone":
		return found.Status == http.StatusOK
	}
	return found.Status == http.StatusNotFound
}

func areNumbers(tokens []string) bool {
	for _, text := range tokens {
		if _, err := strconv.ParseUint(text, 10, 63); err != nil {
			return false
		}
	}
	return true
}

func (l *Lock) current() *held {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	return l.held
}

// Context is cancelled when the lock is lost or given back; it is that already when the lock was not taken.
// Its Err looks at the clock, so it is right also at once after the program or the machine stood still. Work
// under the lock should end with it.
func (l *Lock) Context() context.Context {
	held := l.current()
	if held == nil {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		return ctx
	}
	return lockContext{held.lease.ended, held.lease}
}

// Token is the fencing token: give it to what you write to. Tokens of a lock rise. It is that of
// the last time after the lock was given back or lost, and 0 before it was taken.
func (l *Lock) Token() uint64 {
	tokens := l.Tokens()
	if len(tokens) == 0 {
		return 0
	}
	return tokens[0]
}

// Tokens has one token for each of several locks, in their order.
func (l *Lock) Tokens() []uint64 {
	held := l.current()
	if held == nil {
		return nil
	}
	var tokens []uint64
	for _, text := range held.tokens {
		token, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			return nil
		}
		tokens = append(tokens, token)
	}
	return tokens
}

// KeepAlive keeps the lock for another time of its lease from now; whether it is held. For locks with
// Options.NoKeepAlive: call it at least each third of the lease's time. Nothing else notices that the program is late:
// check Err of the Context before each step, and give each write the token.
func (l *Lock) KeepAlive(ctx context.Context) bool {
	l.mutex.Lock()
	held := l.held
	isHeld := held != nil && !held.isLetGo
	l.mutex.Unlock()
	if !isHeld || held.lease.lost() {
		return false
	}
	held.lease.ask(ctx, now())
	return !held.lease.lost()
}

// Verify asks the cluster whether all of it was held at a moment of this call.
func (l *Lock) Verify(ctx context.Context) (bool, error) {
	held := l.current()
	if held == nil {
		return false, nil
	}
	for at, token := range held.tokens {
		body := map[string]any{"token": token}
		until := now() + answerMax
		each := l.cluster.transport.share(ctx, until)
		found, err := l.cluster.transport.call(ctx, http.MethodPost, l.verify[at], body, until, each, isAboutHold)
		if err != nil || found.Held == nil || !*found.Held {
			return false, err
		}
	}
	return true, nil
}

// Unlock gives the lock back; whether it was still held, as far as is known. It may be repeated. It returns
// when a node has answered, or when the lease has ended by itself.
func (l *Lock) Unlock() bool {
	taken := l.letGo()
	if taken == nil {
		return false
	}
	defer taken.end()
	return taken.release(func(string, error) {})
}

// UnlockLater is Unlock for callers that do not wait, such as defer: it returns at once, and the channel has the
// answer later. The request leaves at once and is repeated until the lease's deadline; Config.OnUnreleased gets a
// failure. What this cluster's locks ask of the same lock from now on is sent behind it. Cluster.Flush waits for it; a
// program that ends before leaves the lock to the end of its lease. With 1,024 of them under way it waits, as Unlock.
func (l *Lock) UnlockLater() <-chan bool {
	answered := make(chan bool, 1)
	taken := l.letGo()
	if taken == nil {
		answered <- false
		return answered
	}
	transport := l.cluster.transport
	transport.later(l.free, func() { answered <- taken.release(transport.onUnreleased) }, taken.end)
	return answered
}

// letGone is a hold that has ended for this program, and not yet for the cluster.
type letGone struct {
	lock *Lock
	held *held
	// The deadline of the lease.
	until time.Duration
	lost  bool
}

// letGo ends the hold for this program; nil: nothing is held.
func (l *Lock) letGo() *letGone {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if l.held == nil || l.held.isLetGo {
		return nil
	}
	l.held.isLetGo = true
	taken := &letGone{l, l.held, l.held.lease.until(), l.held.lease.lost()}
	l.held.lease.endHold(Released)
	l.held.lease.stop()
	// Nobody may go on relying on it from here on.
	l.held.lease.end()
	return taken
}

// end gives the lease back, of which nothing is left if it is lost.
func (taken *letGone) end() {
	if !taken.lost {
		taken.held.lease.giveBack()
	}
}

// release gives all locks back; whether all were held. A failure of one is reported.
func (taken *letGone) release(report func(lock string, err error)) bool {
	released := true
	for at := range taken.held.tokens {
		isReleased, err := false, ErrLost
		if !taken.lost {
			isReleased, err = taken.releaseOne(at)
		}
		if !isReleased {
			report(nameOf(taken.lock.verify[at]), err)
		}
		released = released && isReleased
	}
	return released
}

func (taken *letGone) releaseOne(at int) (bool, error) {
	each := longest((taken.until-now())/3, 500*time.Millisecond)
	body := map[string]any{"secret": taken.held.lease.secret, "token": taken.held.tokens[at]}
	call := taken.lock.cluster.transport.call
	found, err := call(context.Background(), http.MethodPost, taken.lock.free[at], body, taken.until, each, isAboutRelease)
	if err != nil {
		return false, err
	}
	return found.Released != nil && *found.Released, ErrLost
}

// nameOf is the name of a lock in the address of its verification.
func nameOf(verify string) string {
	path := strings.TrimSuffix(strings.TrimPrefix(verify, "/v1/locks/"), "/verify")
	if name, err := url.PathUnescape(path); err == nil {
		return name
	}
	return path
}

func isAboutHold(found *answer) bool {
	return found.Status == http.StatusNotFound || found.Status == http.StatusOK && found.Held != nil
}

func isAboutRelease(found *answer) bool {
	return found.Status == http.StatusNotFound || found.Status == http.StatusOK && found.Released != nil
}

// Silence stops keep-alive, so that the lock is lost: for tests of what happens then.
func (l *Lock) Silence() {
	if held := l.current(); held != nil {
		held.lease.stop()
	}
}

func requestID() string {
	var bytes [16]byte
	if _, err := rand.Read(bytes[:]); err != nil {
		panic("rowlock: the machine has no random numbers: " + err.Error())
	}
	return hex.EncodeToString(bytes[:])
}
