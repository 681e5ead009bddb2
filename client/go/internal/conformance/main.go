// Command conformance runs conformance.json and the README's example: conformance URL[,URL..]
package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	rowlock "github.com/rowlock/rowlock/client/go"
)

const (
	version = 5
	// Of a lease: short, but longer than the pauses of a busy machine.
	ttl = 6 * time.Second
	// For a step that must come true.
	patience = time.Minute
)

type step struct {
	Do, As, Lock, Path string
	Client             string
	Mode               rowlock.Mode
	Permits            int
	Limit              int
	TimeoutMs          int64 `json:"timeout_ms"`
	Expect             any
	Leases, Ms         int64
	Observed           *expected
	Resource, Token    string
	Reason             string
	WithinMs           int64 `json:"within_ms"`
	Of                 []string
	Through, Before    string
	Units              []rune
	Throws             bool
	OutsideMs          int64 `json:"outside_ms"`
	Says               string
}

// gateway is where answers are as the first level of the path says; empty: the scenarios that need it are left out.
var gateway = os.Getenv("ROWLOCK_GATEWAY")

var errThrown = errors.New("thrown")

type scenarios struct {
	Version   int
	Scenarios []struct {
		Name  string
		Steps []step
	}
}

// expected is what an observer is to have got.
type expected struct {
	Waiting   *int
	Wait      rowlock.Outcome
	Contended *bool
	WaitedMs  int64 `json:"waited_ms"`
	Hold      rowlock.Outcome
	HeldMs    int64 `json:"held_ms"`
}

// seen is what it has got.
type seen struct {
	mutex   sync.Mutex
	waiting int
	wait    rowlock.Wait
	hold    rowlock.Hold
}

func (s *seen) Waiting(context.Context, string, string) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.waiting++
}

func (s *seen) Waited(_ context.Context, wait rowlock.Wait) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.waiting--
	s.wait = wait
}

func (s *seen) Held(hold rowlock.Hold) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.hold = hold
}

func (s *seen) check(wanted *expected, most time.Duration) error {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	waited, held := time.Duration(wanted.WaitedMs)*time.Millisecond, time.Duration(wanted.HeldMs)*time.Millisecond
	isRight := (wanted.Waiting == nil || *wanted.Waiting == s.waiting) &&
		(wanted.Wait == "" || wanted.Wait == s.wait.Outcome) &&
		(wanted.Contended == nil || *wanted.Contended == s.wait.Contended) &&
		(wanted.Hold == "" || wanted.Hold == s.hold.Outcome) &&
		waited <= s.wait.Waited && s.wait.Waited <= most && held <= s.hold.Held && s.hold.Held <= most
	if !isRight {
		return fmt.Errorf("it got %d, %+v, %+v", s.waiting, s.wait, s.hold)
	}
	return nil
}

type attempt struct {
	client  *rowlock.Cluster
	seen    *seen
	began   time.Time
	lock    *rowlock.Lock
	abort   context.CancelFunc
	waiting chan struct{}
	done    chan struct{}
	outcome string
	err     error
	took    time.Duration
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func client(urls string) *rowlock.Cluster {
	return observed(urls, nil)
}

func observed(urls string, observer rowlock.Observer) *rowlock.Cluster {
	cluster, err := rowlock.New(rowlock.Config{URLs: strings.Split(urls, ","), TTL: ttl, Observer: observer})
	check(err)
	return cluster
}

// soon is whether it ends.
func soon(done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	case <-time.After(patience):
		return false
	}
}

// begin starts an attempt, by the client of the attempt before if there is one.
func begin(urls, prefix string, s step, before *attempt) *attempt {
	a := &attempt{waiting: make(chan struct{}), done: make(chan struct{}), seen: &seen{}, began: time.Now()}
	var once sync.Once
	name := prefix + "/" + s.Lock
	if s.Path != "" {
		name = "/locks/" + prefix + "/" + s.Path
	}
	for _, unit := range s.Units {
		// Half a surrogate pair as others write it: no UTF-8.
		if unit < 0x80 {
			name += string(unit)
		} else {
			name += string([]byte{byte(0xe0 | unit>>12), byte(0x80 | unit>>6&0x3f), byte(0x80 | unit&0x3f)})
		}
	}
	switch {
	case s.Through != "":
		urls = gateway + "/" + s.Through
	case s.Before != "":
		urls = gateway + "/" + s.Before + "," + urls
	}
	if a.client = observed(urls, a.seen); before != nil {
		a.client = before.client
	}
	a.lock = a.client.Lock(name, rowlock.Options{
		Mode: s.Mode, Permits: s.Permits, Limit: s.Limit,
		OnWaiting: func(int) {
			once.Do(func() { close(a.waiting) })
			if s.Throws {
				panic(errThrown)
			}
		},
	})
	var ctx context.Context
	take := a.lock.Lock
	began := time.Now()
	switch {
	case s.OutsideMs != 0:
		ctx, a.abort = context.WithCancel(context.Background())
		time.AfterFunc(time.Duration(s.OutsideMs)*time.Millisecond, a.abort)
	case s.TimeoutMs == 0:
		ctx, a.abort = context.WithCancel(context.Background())
		take = a.lock.TryLock
	default:
		ctx, a.abort = context.WithTimeout(context.Background(), time.Duration(s.TimeoutMs)*time.Millisecond)
	}
	go func() {
		defer close(a.done)
		defer func() {
			if thrown := recover(); thrown != nil {
				a.err, a.outcome = errThrown, fmt.Sprint(thrown)
			}
			a.took = time.Since(began)
		}()
		a.err = take(ctx)
		a.outcome = outcome(a.err)
	}()
	return a
}

func outcome(err error) string {
	var busy *rowlock.Busy
	var refused *rowlock.Refused
	switch {
	case err == nil:
		return "held"
	case errors.As(err, &busy):
		return "busy"
	case errors.As(err, &refused) && refused.Status == 422:
		return "refused"
	case errors.As(err, &refused) && refused.Status == 400, strings.Contains(err.Error(), "not a name"):
		return "invalid"
	case errors.Is(err, context.DeadlineExceeded):
		return "timeout"
	case errors.Is(err, context.Canceled):
		return "aborted"
	case refused != nil:
		return fmt.Sprint("refused ", refused.Status)
	}
	return err.Error()
}

// state is what the steps of a scenario share.
type state struct {
	attempts map[string]*attempt
	fences   map[string]*rowlock.Fence
	znode    string
	urls     string
	prefix   string
}

func (all *state) check(a *attempt, s step) (any, error) {
	if all.fences[s.Resource] == nil {
		all.fences[s.Resource] = &rowlock.Fence{}
	}
	if s.Token == "" {
		return all.fences[s.Resource].Check(a.lock.Token()), nil
	}
	token, err := strconv.ParseUint(s.Token, 10, 64)
	return all.fences[s.Resource].Check(token), err
}

// ask gives how many are asked, as the numbers in the scenarios.
func (all *state) ask(s step) (any, error) {
	options := rowlock.AskOptions{Within: time.Duration(s.WithinMs) * time.Millisecond}
	asked, err := client(all.urls).Ask(context.Background(), all.prefix+"/"+s.Lock, s.Reason, options)
	return float64(asked), err
}

// write makes the znode, or sets it where there is one.
func (all *state) write(a *attempt) (any, error) {
	ctx := context.Background()
	_, err := a.lock.Create(ctx, all.znode, []byte("1"))
	var refused *rowlock.Refused
	if errors.As(err, &refused) && refused.Status == 409 {
		_, err = a.lock.Set(ctx, all.znode, []byte("2"), rowlock.AnyVersion)
	}
	if errors.Is(err, rowlock.ErrStale) {
		return "stale", nil
	}
	return "written", err
}

// perform does a step of an attempt; the result is what it found.
func perform(a *attempt, s step, all *state) (any, error) {
	switch s.Do {
	case "fence":
		return all.check(a, s)
	case "write":
		return all.write(a)
	case "ask":
		return all.ask(s)
	case "asked":
		select {
		case question := <-a.lock.Asked():
			if question.Token != a.lock.Token() {
				return nil, fmt.Errorf("%+v", question)
			}
			return question.Reason, nil
		case <-time.After(patience):
			return nil, errors.New("it is not told")
		}
	case "unasked":
		if len(a.lock.Asked()) != 0 {
			return nil, fmt.Errorf("%+v", <-a.lock.Asked())
		}
	case "start":
	case "acquire", "finish":
		if !soon(a.done) {
			return nil, errors.New("it has not ended")
		}
		if s.Says != "" && !strings.Contains(fmt.Sprint(a.err), s.Says) {
			return nil, fmt.Errorf("it says %w", a.err)
		}
		if s.WithinMs != 0 && a.took > time.Duration(s.WithinMs)*time.Millisecond {
			return nil, fmt.Errorf("after %v", a.took)
		}
		return a.outcome, nil
	case "waiting":
		if !soon(a.waiting) {
			return nil, errors.New("it has no place in the queue")
		}
	case "pending":
		select {
		case <-a.done:
			return nil, errors.New(a.outcome)
		default:
		}
	case "abort":
		a.abort()
	case "verify":
		return a.lock.Verify(context.Background())
	case "release":
		return a.lock.Unlock(), nil
	case "post":
		a.lock.UnlockLater()
	case "silence":
		a.lock.Silence()
	case "lost":
		if !soon(a.lock.Context().Done()) {
			return nil, errors.New("it is not told")
		}
	case "pause":
		time.Sleep(time.Duration(s.Leases)*ttl + time.Duration(s.Ms)*time.Millisecond)
	case "observed":
		return nil, a.seen.check(s.Observed, time.Since(a.began))
	case "tokens_rise":
		last := uint64(0)
		for _, name := range s.Of {
			if token := all.attempts[name].lock.Token(); token <= last {
				return nil, fmt.Errorf("%d after %d", token, last)
			} else {
				last = token
			}
		}
	default:
		return nil, errors.New("unknown step: this runner is older than the scenarios")
	}
	return nil, nil
}

func run(urls, prefix, name string, steps []step) error {
	all := &state{
		attempts: map[string]*attempt{}, fences: map[string]*rowlock.Fence{}, urls: urls, prefix: prefix,
		znode: "/" + strings.ReplaceAll(prefix, "/", "-"),
	}
	for _, s := range steps {
		if s.Do == "acquire" || s.Do == "start" {
			all.attempts[s.As] = begin(urls, prefix, s, all.attempts[s.Client])
		}
		found, err := perform(all.attempts[s.As], s, all)
		if err == nil && s.Expect != nil && found != s.Expect {
			err = fmt.Errorf("%v", found)
		}
		if err != nil {
			return fmt.Errorf("%s: %+v: %w", name, s, err)
		}
	}
	return nil
}

func severalAreTakenTogether(urls, prefix string) error {
	cluster, ctx := client(urls), context.Background()
	second := cluster.Lock(prefix+"/second", rowlock.Options{})
	if err := second.TryLock(ctx); err != nil {
		return err
	}
	both := cluster.Locks([]rowlock.Part{{Name: prefix + "/first"}, {Name: prefix + "/second"}}, rowlock.Options{})
	if said := outcome(both.TryLock(ctx)); said != "busy" {
		return errors.New(said)
	}
	if !second.Unlock() {
		return errors.New("the second was not held")
	}
	if err := both.TryLock(ctx); err != nil {
		return err
	}
	if tokens := both.Tokens(); len(tokens) != 2 || tokens[1] <= second.Token() {
		return fmt.Errorf("tokens %v after %d", tokens, second.Token())
	}
	if held, err := both.Verify(ctx); err != nil || !held {
		return fmt.Errorf("held: %v, %v", held, err)
	}
	if !both.Unlock() || both.Context().Err() == nil {
		return errors.New("they were not given back")
	}
	return nil
}

func leadersFollowEachOther(urls, name string) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	election := client(urls).Election(name + "/b")
	if leader, err := election.Leader(ctx); leader != nil || err != nil {
		return fmt.Errorf("%v leads, %v", leader, err)
	}
	first := election.Candidate("first", rowlock.Options{})
	if err := first.Lock(ctx); err != nil {
		return err
	}
	if held, err := first.Verify(ctx); err != nil || !held {
		return fmt.Errorf("leads: %v, %v", held, err)
	}
	ended := make(chan error, 1)
	waiting := make(chan struct{}, 100)
	second := election.Candidate("second", rowlock.Options{OnWaiting: func(int) { waiting <- struct{}{} }})
	go func() { ended <- second.Lock(ctx) }()
	<-waiting
	seen := []string{}
	enough := errors.New("enough")
	err := election.Observe(ctx, func(leader *rowlock.Leader) error {
		if leader == nil {
			return nil
		}
		if seen = append(seen, leader.Value); leader.Value == "second" {
			if err := <-ended; err != nil || second.Token() != leader.Token {
				return fmt.Errorf("%v, %d is not %d", err, second.Token(), leader.Token)
			}
			return enough
		}
		if !first.Unlock() {
			return errors.New("the first did not lead")
		}
		return nil
	})
	if err != enough || strings.Join(seen, " ") != "first second" || !second.Unlock() {
		return fmt.Errorf("%v, %v", seen, err)
	}
	return nil
}

func aWatchGoesOnWhereItEnded(urls, name string) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cluster := client(urls)
	lock := cluster.Lock(name, rowlock.Options{})
	after, enough := "0", errors.New("enough")
	for round := 0; round < 2; round++ {
		if err := lock.Lock(ctx); err != nil {
			return err
		}
		lock.Unlock()
		told := false
		err := cluster.Watch(ctx, rowlock.WatchOptions{Lock: "/locks/" + name, After: after}, func(e rowlock.Event) error {
			var data struct{ Token string }
			if err := json.Unmarshal(e.Data, &data); err != nil {
				return err
			}
			if e.ID != "" {
				after = e.ID
			}
			if told = told || e.Event == "granted" && data.Token == fmt.Sprint(lock.Token()); told && e.Event == "released" {
				return enough
			}
			return nil
		})
		if err != enough {
			return err
		}
	}
	return nil
}

// theReadmesExampleRuns as a program that has the package from elsewhere.
func theReadmesExampleRuns(urls, folder string) error {
	readme, err := os.ReadFile(filepath.Join(folder, "README.md"))
	check(err)
	_, rest, _ := strings.Cut(string(readme), "```go\n")
	example, _, _ := strings.Cut(rest, "```")
	place, err := os.MkdirTemp("", "rowlock-example")
	check(err)
	defer os.RemoveAll(place)
	const module = "github.com/rowlock/rowlock/client/go"
	text := fmt.Sprintf("module example\n\ngo 1.19\n\nrequire %s v0.0.0\n\nreplace %s => %s\n", module, module, folder)
	check(os.WriteFile(filepath.Join(place, "go.mod"), []byte(text), 0o600))
	check(os.WriteFile(filepath.Join(place, "main.go"), []byte(example), 0o600))
	command := exec.Command("go", "run", ".")
	command.Dir = place
	command.Env = append(os.Environ(), "ROWLOCK_API="+urls)
	said, err := command.CombinedOutput()
	if err != nil || !regexp.MustCompile(`^token \d+\n`).Match(said) {
		return fmt.Errorf("%w: %s", err, said)
	}
	return nil
}

func needsGateway(steps []step) bool {
	for _, s := range steps {
		if s.Through != "" || s.Before != "" {
			return true
		}
	}
	return false
}

func main() {
	urls := os.Args[1]
	_, file, _, _ := runtime.Caller(0)
	folder := filepath.Dir(filepath.Dir(filepath.Dir(file)))
	text, err := os.ReadFile(filepath.Join(folder, "..", "conformance.json"))
	check(err)
	var document scenarios
	check(json.Unmarshal(text, &document))
	if document.Version != version {
		check(errors.New("the scenarios are of another version"))
	}
	var random [4]byte
	_, err = rand.Read(random[:])
	check(err)
	prefix := fmt.Sprintf("conformance/%x", random)
	for _, scenario := range document.Scenarios {
		if gateway == "" && needsGateway(scenario.Steps) {
			fmt.Println("left out", scenario.Name)
			continue
		}
		check(run(urls, prefix, scenario.Name, scenario.Steps))
		fmt.Println("ok", scenario.Name)
	}
	check(severalAreTakenTogether(urls, prefix))
	check(leadersFollowEachOther(urls, fmt.Sprintf("election-%x", random)))
	check(aWatchGoesOnWhereItEnded(urls, prefix+"/watched"))
	check(theReadmesExampleRuns(urls, folder))
	fmt.Println(len(document.Scenarios), "scenarios")
}
