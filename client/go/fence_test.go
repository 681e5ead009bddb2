package rowlock

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

func TestASmallerTokenIsRefused(t *testing.T) {
	fence := NewFence(7)
	for _, c := range []struct {
		token uint64
		fits  bool
	}{{6, false}, {7, true}, {7, true}, {1<<63 - 1, true}, {1<<63 - 2, false}} {
		if fence.Check(c.token) != c.fits {
			t.Errorf("%d is refused: %v", c.token, c.fits)
		}
	}
}

func TestALargerTokenWaitsForWritesOfSmallerOnes(t *testing.T) {
	ctx, fence := context.Background(), &Fence{}
	leave, err := fence.Enter(ctx, 1)
	if err != nil {
		t.Fatal(err)
	}
	let := make(chan error)
	go func() {
		leave, err := fence.Enter(ctx, 2)
		if err == nil {
			leave()
		}
		let <- err
	}()
	waitFor(t, "the larger one", func() bool { return fence.Seen() == 2 })
	var stale *Stale
	if _, err := fence.Enter(ctx, 1); !errors.As(err, &stale) {
		t.Fatal("it is let in while the larger one waits", err)
	}
	select {
	case err := <-let:
		t.Fatal("it has not waited", err)
	case <-time.After(50 * time.Millisecond):
	}
	leave()
	leave()
	if err := <-let; err != nil {
		t.Fatal(err)
	}
	leave, _ = fence.Enter(ctx, 3)
	short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
	defer cancel()
	if _, err := fence.Enter(short, 4); err != context.DeadlineExceeded {
		t.Fatal(err)
	}
	leave()
	if len(fence.inside) != 0 {
		t.Fatal(fence.inside)
	}
}

// sharedStore is a store that processes of a service share.
type sharedStore struct {
	turn chan struct{}
	seen map[string]uint64
	fail error
}

func newSharedStore() *sharedStore {
	return &sharedStore{turn: make(chan struct{}, 1), seen: map[string]uint64{}}
}

func (s *sharedStore) Enter(ctx context.Context, lock string) (uint64, func(uint64) error, error) {
	select {
	case s.turn <- struct{}{}:
	case <-ctx.Done():
		return 0, nil, ctx.Err()
	}
	return s.seen[lock], func(seen uint64) error {
		defer func() { <-s.turn }()
		if s.fail == nil {
			s.seen[lock] = seen
		}
		return s.fail
	}, nil
}

func TestAServiceRefusesLateHolders(t *testing.T) {
	done := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {})
	ask := func(handler http.Handler, method, value string) int {
		request := httptest.NewRequest(method, "/", strings.NewReader("x"))
		if value != "" {
			request.Header.Set(FenceHeader, value)
		}
		answer := httptest.NewRecorder()
		handler.ServeHTTP(answer, request)
		return answer.Code
	}
	fenced := Fenced(done, nil, "a b")
	for _, c := range []struct {
		method, value string
		status        int
	}{
		{"GET", "", 200}, {"PUT", "", 428}, {"PUT", "other;9", 400}, {"PUT", "a%20b", 400}, {"PUT", "a%20b;-1", 400},
		{"PUT", "a%20b;" + strings.Repeat("9", 40), 400}, {"PUT", "a%20b;" + strings.Repeat("0", 20), 400},
		{"PUT", "a%20b;9223372036854775808", 400}, {"PUT", "a%20b;1,a%20b;2", 400}, {"PUT", "a%20b;", 400},
		{"PUT", FenceValue("a b", 5), 200}, {"PUT", FenceValue("a b", 4), 412}, {"PUT", FenceValue("a b", 5), 200},
		{"DELETE", FenceValue("a b", 1<<53+1), 200}, {"PUT", FenceValue("a b", 1<<53), 412},
	} {
		if status := ask(fenced, c.method, c.value); status != c.status {
			t.Errorf("%s %q: %d instead of %d", c.method, c.value, status, c.status)
		}
	}
}

func TestAStoreKeepsOnlyTokensThatTheServiceHasNotRefused(t *testing.T) {
	status, calls, store := 0, 0, newSharedStore()
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		calls++
		if status == 0 {
			panic(http.ErrAbortHandler)
		}
		w.WriteHeader(status)
	})
	// Asks a process of the service that has just started.
	ask := func(token uint64) (code int) {
		defer func() { _ = recover() }()
		request := httptest.NewRequest("PUT", "/", nil)
		request.Header.Set(FenceHeader, FenceValue("a b", token))
		answer := httptest.NewRecorder()
		Fenced(handler, store, "a b").ServeHTTP(answer, request)
		return answer.Code
	}
	for _, step := range []struct {
		status, code int
		token, seen  uint64
	}{
		{401, 401, 1<<63 - 1, 0}, {200, 200, 5, 5}, {403, 403, 1 << 62, 5}, {499, 499, 6, 5}, {500, 500, 7, 7},
		{0, 0, 8, 8}, {200, 200, 8, 8},
	} {
		status = step.status
		if code := ask(step.token); code != step.code || store.seen["a b"] != step.seen {
			t.Errorf("%+v: %d, %v", step, code, store.seen)
		}
	}
	calls = 0
	if code := ask(7); code != 412 || calls != 0 {
		t.Error("a late holder has reached the service", code, calls)
	}
	store.fail = errors.New("the disk is full")
	if code := ask(9); code != 0 {
		t.Error("it has answered though the token is not stored", code)
	}
	if len(store.turn) != 0 {
		t.Error("the store is still locked")
	}
}

// askLater sends a request with this token of the lock "a", and the status of its answer into the channel.
func askLater(handler http.Handler, ctx context.Context, token uint64) <-chan int {
	done := make(chan int, 1)
	request := httptest.NewRequest("PUT", "/", nil).WithContext(ctx)
	request.Header.Set(FenceHeader, FenceValue("a", token))
	go func() {
		answer := httptest.NewRecorder()
		handler.ServeHTTP(answer, request)
		done <- answer.Code
	}()
	return done
}

func TestProcessesWithOneStoreLetInOneRequestAtATime(t *testing.T) {
	store, entered, leave := newSharedStore(), make(chan string, 9), make(chan struct{})
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		entered <- r.Header.Get(FenceHeader)
		<-leave
	})
	one, other := Fenced(handler, store, "a"), Fenced(handler, store, "a")
	earlier := askLater(one, context.Background(), 1)
	<-entered
	short, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if here, there := <-askLater(one, short, 1), <-askLater(other, short, 3); here != 503 || there != 503 {
		t.Error(here, there)
	}
	later := askLater(other, context.Background(), 2)
	select {
	case value := <-entered:
		t.Error("it has been let in beside another", value)
	case <-time.After(50 * time.Millisecond):
	}
	leave <- struct{}{}
	if value := <-entered; value != "a;2" {
		t.Error(value)
	}
	late := askLater(one, context.Background(), 1)
	leave <- struct{}{}
	if first, second, third := <-earlier, <-later, <-late; first != 200 || second != 200 || third != 412 {
		t.Error(first, second, third)
	}
	if len(entered) != 0 || len(store.turn) != 0 {
		t.Error("a late holder was let in, or the store is still locked")
	}
}

func TestTheTokenOfARequestThatTheServiceRefusesDoesNotCount(t *testing.T) {
	status := 0
	fenced := Fenced(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if status == 0 {
			panic(http.ErrAbortHandler)
		}
		w.WriteHeader(status)
	}), nil, "a")
	ask := func(token uint64, more ...string) (code int) {
		defer func() { _ = recover() }()
		request := httptest.NewRequest("PUT", "/", nil)
		request.Header[FenceHeader] = append([]string{FenceValue("a", token)}, more...)
		answer := httptest.NewRecorder()
		fenced.ServeHTTP(answer, request)
		return answer.Code
	}
	for _, step := range []struct {
		status int
		token  uint64
		code   int
	}{
		{401, 1<<63 - 1, 401}, {200, 5, 200}, {403, 1 << 62, 403}, {200, 5, 200}, {500, 7, 500}, {200, 6, 412},
		{0, 8, 0}, {200, 7, 412}, {200, 8, 200},
	} {
		status = step.status
		if code := ask(step.token); code != step.code {
			t.Errorf("%+v: %d", step, code)
		}
	}
	if code := ask(9, "a;10"); code != 400 {
		t.Error("two headers", code)
	}
}

func TestARequestOfAnotherTokenWaitsForTheAnswerToTheOneBefore(t *testing.T) {
	entered, leave := make(chan struct{}), make(chan int)
	fenced := Fenced(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get(FenceHeader) == "a;9" {
			close(entered)
			w.WriteHeader(<-leave)
		}
	}), nil, "a")
	ask := func(token uint64) <-chan int { return askLater(fenced, context.Background(), token) }
	large := ask(9)
	<-entered
	small := ask(5)
	select {
	case code := <-small:
		t.Error("it has not waited", code)
	case <-time.After(50 * time.Millisecond):
	}
	leave <- 401
	if one, other := <-large, <-small; one != 401 || other != 200 {
		t.Error(one, other)
	}
}
