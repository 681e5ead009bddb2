package rowlock

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// How long a node may take for an answer, on top of the time for which it was asked to wait.
	answerMax = 10 * time.Second
	// Between two rounds through all nodes.
	roundPause = 200 * time.Millisecond
	// Between two moves to a leader: it may be out of reach from here.
	stay = time.Minute
	// Answers at all URLs may be something else's than a node's for so long before a request fails.
	strangeMax = 15 * time.Second
	// Of an answer.
	bodyMax = 1 << 20
	// Unwaited releases under way; the next one is waited for.
	unwaitedMax = 1024
	// Of a strange answer: bytes that are looked at, and those in a message.
	lookedAt, lineMax = 4096, 200
	forever           = time.Duration(1<<63 - 1)
)

// errTimedOut is for what has a bound beside its context.
var errTimedOut = errors.New("rowlock: no node has answered in time")

// errNotAsked stands where a node's failure would, until a node has failed.
var errNotAsked = errors.New("no node was asked")

// answer has the fields of all answers.
type answer struct {
	Status int `json:"-"`
	// Strange is the first line of a body that is no document of the API.
	Strange    string  `json:"-"`
	Lease      string  `json:"lease"`
	Secret     string  `json:"secret"`
	TTLMs      int64   `json:"ttl_ms"`
	ValidForMs int64   `json:"valid_for_ms"`
	State      string  `json:"state"`
	Contended  bool    `json:"contended"`
	Token      string  `json:"token"`
	Position   int     `json:"position"`
	Holder     *Holder `json:"holder"`
	Locks      []struct {
		State  string  `json:"state"`
		Token  string  `json:"token"`
		Holder *Holder `json:"holder"`
	} `json:"locks"`
	// Asked are questions, and in the answer to one their number.
	Asked    json.RawMessage `json:"asked"`
	Released *bool           `json:"released"`
	Held     *bool           `json:"held"`
	Zxid     string          `json:"zxid"`
	Leader   *struct {
		Value   string `json:"value"`
		Token   string `json:"token"`
		SinceMs int64  `json:"since_ms"`
	} `json:"leader"`
	Stat *struct {
		Version int32 `json:"version"`
	} `json:"stat"`
	Stale  bool   `json:"stale"`
	Title  string `json:"title"`
	Detail string `json:"detail"`
}

// transport asks one node after another until one answers. It knows no locks.
type transport struct {
	nodes []string
	// Host and port of each.
	addresses []string
	token     string
	http      *http.Client
	// The node that is asked next.
	at atomic.Uint32
	// Until when no leader is followed: a moment of now.
	staysUntil atomic.Int64
	mutex      sync.Mutex
	// Unwaited releases without an answer, by their address.
	releases map[string][]chan struct{}
	// Unwaited releases under way, until their leases are given back.
	unwaited     map[chan struct{}]struct{}
	onUnreleased func(lock string, err error)
}

// later runs release, then end, in a goroutine; behind waits for release. Where unwaitedMax of them are under way, it
// runs both itself.
func (t *transport) later(paths []string, release, end func()) {
	answered, done := make(chan struct{}), make(chan struct{})
	t.mutex.Lock()
	for _, path := range paths {
		t.releases[path] = append(t.releases[path], answered)
	}
	t.unwaited[done] = struct{}{}
	isFull := len(t.unwaited) > unwaitedMax
	t.mutex.Unlock()
	run := func() {
		release()
		close(answered)
		t.forget(paths, answered)
		end()
		t.mutex.Lock()
		delete(t.unwaited, done)
		t.mutex.Unlock()
		close(done)
	}
	if isFull {
		run()
	} else {
		go run()
	}
}

// forget drops an answered release.
func (t *transport) forget(paths []string, answered chan struct{}) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	for _, path := range paths {
		var others []chan struct{}
		for _, other := range t.releases[path] {
			if other != answered {
				others = append(others, other)
			}
		}
		if t.releases[path] = others; len(others) == 0 {
			delete(t.releases, path)
		}
	}
}

// flush waits for the unwaited releases under way.
func (t *transport) flush(ctx context.Context) error {
	var all []chan struct{}
	t.mutex.Lock()
	for done := range t.unwaited {
		all = append(all, done)
	}
	t.mutex.Unlock()
	for _, done := range all {
		select {
		case <-done:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// behind waits for the releases under way at these addresses, until a moment of now or the end of ctx at most.
func (t *transport) behind(ctx context.Context, paths []string, until time.Duration) {
	var all []chan struct{}
	t.mutex.Lock()
	for _, path := range paths {
		all = append(all, t.releases[path]...)
	}
	t.mutex.Unlock()
	for _, done := range all {
		timer := time.NewTimer(until - now())
		select {
		case <-done:
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
	}
}

func newTransport(config Config) (*transport, error) {
	if len(config.URLs) == 0 {
		return nil, errors.New("rowlock: no URL of a node")
	}
	t := &transport{token: config.Token, http: config.HTTP, onUnreleased: config.OnUnreleased}
	t.releases, t.unwaited = map[string][]chan struct{}{}, map[chan struct{}]struct{}{}
	if t.onUnreleased == nil {
		t.onUnreleased = func(lock string, err error) {
			log.Printf("rowlock: cannot release %q: %v; it is free when its lease ends", lock, err)
		}
	}
	for _, text := range config.URLs {
		node, err := url.Parse(text)
		if err != nil || (node.Scheme != "http" && node.Scheme != "https") || node.Host == "" {
			return nil, fmt.Errorf("rowlock: not the URL of a node: %q", text)
		}
		if node.User != nil || node.RawQuery != "" || node.Fragment != "" {
			return nil, fmt.Errorf("rowlock: the URL of a node has a user, a query or a fragment: %q", text)
		}
		// The path of a URL, such as that of a gateway, stands before that of each request.
		t.nodes = append(t.nodes, node.Scheme+"://"+node.Host+strings.TrimRight(node.EscapedPath(), "/"))
		port := node.Port()
		if port == "" {
			port = map[string]string{"http": "80", "https": "443"}[node.Scheme]
		}
		t.addresses = append(t.addresses, strings.ToLower(net.JoinHostPort(node.Hostname(), port)))
	}
	if t.http == nil {
		own := http.DefaultTransport.(*http.Transport).Clone()
		own.MaxIdleConnsPerHost = 64
		if config.CAFile != "" {
			pem, err := os.ReadFile(config.CAFile)
			if err != nil {
				return nil, fmt.Errorf("rowlock: cannot read the authorities: %w", err)
			}
			pool := x509.NewCertPool()
			if !pool.AppendCertsFromPEM(pem) {
				return nil, fmt.Errorf("rowlock: no certificate in %s", config.CAFile)
			}
			own.TLSClientConfig = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
		}
		t.http = &http.Client{Transport: own, CheckRedirect: func(*http.Request, []*http.Request) error {
			return http.ErrUseLastResponse
		}}
	}
	return t, nil
}

// share is the part of the time that is left which one node may use up: others are to be asked, too.
func (t *transport) share(ctx context.Context, until time.Duration) time.Duration {
	left := until - now()
	if deadline, ok := ctx.Deadline(); ok {
		left = shortest(left, time.Until(deadline))
	}
	return left / time.Duration(len(t.nodes))
}

// next goes on to another node, unless another request has done so.
func (t *transport) next(at uint32) {
	t.at.CompareAndSwap(at, (at+1)%uint32(len(t.nodes)))
}

// follow goes to the leader that a node names, if it is one of these nodes.
func (t *transport) follow(leader string) {
	if leader == "" || int64(now()) < t.staysUntil.Load() {
		return
	}
	t.staysUntil.Store(int64(now() + stay))
	for at, address := range t.addresses {
		if address == strings.ToLower(leader) {
			t.at.Store(uint32(at))
		}
	}
}

// call makes a request that may be repeated. Nothing is sent after until, a moment of now; each bounds one
// node's answer. What wants does not take is no answer: a proxy may have made it. The error is that of ctx, a
// *Refused for all refusals but 404 and where something that is no node answers in their place for strangeMax, or
// errTimedOut.
func (t *transport) call(
	ctx context.Context, method, path string, body any, until, each time.Duration, wants func(*answer) bool,
) (*answer, error) {
	failed, strangeSince := errNotAsked, forever
	for tried := 1; ; tried++ {
		left := until - now()
		if err := ctx.Err(); err != nil {
			// The failure of a node says more than that none has answered.
			if failed != errNotAsked && !errors.Is(failed, context.DeadlineExceeded) && !errors.Is(failed, err) {
				err = fmt.Errorf("%w; the last node: %v", err, failed)
			}
			return nil, err
		}
		if left <= 0 {
			return nil, fmt.Errorf("%w; the last one: %v", errTimedOut, failed)
		}
		at := t.at.Load()
		found, err := t.once(ctx, at, method, path, body, shortest(left, each))
		if err != nil || found.Strange == "" {
			strangeSince = forever
		} else {
			strangeSince = shortest(strangeSince, now())
		}
		switch {
		case err != nil:
			// A request that the end of the caller's time has cut off says nothing of its node.
			if failed == errNotAsked || ctx.Err() == nil && now() < until {
				failed = err
			}
		case found.isRefusal() || now()-strangeMax > strangeSince:
			return nil, refusal(found)
		case found.Strange != "":
			failed = fmt.Errorf("%d %s", found.Status, found.Strange)
		case found.Status >= 500 || found.Status >= 300 && found.Status < 400:
			failed = fmt.Errorf("%d %s", found.Status, found.Detail)
		case !wants(found):
			failed = fmt.Errorf("%d: not an answer of this API", found.Status)
		default:
			return found, nil
		}
		// At the end of the caller's time the node is not to blame.
		if ctx.Err() != nil || now() >= until {
			continue
		}
		t.next(at)
		if tried%len(t.nodes) == 0 {
			pause(ctx, shortest(roundPause, until-now()))
		}
	}
}

func (t *transport) once(
	ctx context.Context, at uint32, method, path string, body any, bound time.Duration,
) (*answer, error) {
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	response, err := t.send(ctx, at, method, path, body, nil)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	t.follow(response.Header.Get("Rowlock-Leader"))
	return read(response)
}

// send makes one request. Whoever calls it closes the body of the answer.
func (t *transport) send(
	ctx context.Context, at uint32, method, path string, body any, more http.Header,
) (*http.Response, error) {
	var text io.Reader
	kind := "application/json"
	if write, ok := body.(*fencedWrite); ok {
		text, more, kind = bytes.NewReader(write.data), write.header, "application/octet-stream"
	} else if body != nil {
		document, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		text = bytes.NewReader(document)
	}
	request, err := http.NewRequestWithContext(ctx, method, t.nodes[at]+path, text)
	if err != nil {
		return nil, err
	}
	for name, values := range more {
		request.Header[name] = values
	}
	request.Header.Set("Content-Type", kind)
	if t.token != "" {
		request.Header.Set("Authorization", "Bearer "+t.token)
	}
	if len(t.nodes) > 1 && int64(now()) >= t.staysUntil.Load() {
		request.Header.Set("Prefer", "leader")
	}
	return t.http.Do(request)
}

// read reads an answer to its end, so that its connection can carry the next request.
func read(response *http.Response) (*answer, error) {
	text, err := io.ReadAll(io.LimitReader(response.Body, bodyMax+1))
	if err != nil {
		return nil, err
	}
	if len(text) > bodyMax {
		return nil, errors.New("the answer is too large")
	}
	found := &answer{}
	// Errors of the API have documents. null is none, but a document to package json.
	isDocument := len(text) == 0 && response.StatusCode < 400 || bytes.HasPrefix(bytes.TrimSpace(text), []byte("{"))
	if !isDocument || len(text) > 0 && json.Unmarshal(text, found) != nil {
		found = &answer{Strange: firstLine(text)}
	}
	found.Status = response.StatusCode
	return found, nil
}

var tag = regexp.MustCompile(`<[^>]*>`)

// firstLine is the first with text, without the tags of HTML.
func firstLine(text []byte) string {
	if len(text) > lookedAt {
		text = text[:lookedAt]
	}
	for _, line := range strings.Split(tag.ReplaceAllString(string(text), " "), "\n") {
		line = strings.TrimSpace(strings.Map(func(r rune) rune {
			if r < ' ' || r > '~' {
				return ' '
			}
			return r
		}, line))
		if len(line) > lineMax {
			line = line[:lineMax]
		}
		if line != "" {
			return line
		}
	}
	return "an empty answer"
}

// isRefusal is whether another try makes no sense. A 404 is for the caller to understand; a strange 408 or 429 is a
// gateway's, which will let later requests through.
func (found *answer) isRefusal() bool {
	isLater := found.Status == http.StatusRequestTimeout || found.Status == http.StatusTooManyRequests
	isFinal := found.Status >= 400 && found.Status < 500 && found.Status != http.StatusNotFound
	return isFinal && !(isLater && found.Strange != "")
}

func refusal(found *answer) error {
	if found.Status == http.StatusPreconditionFailed && found.Stale {
		return ErrStale
	}
	if found.Strange != "" {
		return &Refused{Status: found.Status, Title: found.Strange}
	}
	return &Refused{found.Status, found.Title, found.Detail}
}

// pause ends after the time, or with ctx.
func pause(ctx context.Context, length time.Duration) {
	timer := time.NewTimer(length)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

func longest(one, other time.Duration) time.Duration {
	if one > other {
		return one
	}
	return other
}

func shortest(all ...time.Duration) time.Duration {
	least := all[0]
	for _, one := range all[1:] {
		if one < least {
			least = one
		}
	}
	return least
}
