// Nodes that trickle, gateways that answer with pages, documents that are none, names that are no text.

package rowlock

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

func page(title string) string {
	return "<html>\r\n<head><title>" + title + "</title></head>\r\n<body></body></html>"
}

func answers(status int, text string) script {
	return func(request, int) (int, string) { return status, text }
}

func TestAGatewaysPageIsAnErrorWithItsStatusAndFirstLine(t *testing.T) {
	t.Parallel()
	for status, title := range map[int]string{400: "Plain HTTP to an HTTPS port", 401: "Sign in", 403: "No entry"} {
		n := start(t, answers(status, page(title)))
		err := cluster(t, n).Lock("a", Options{}).Lock(context.Background())
		var refused *Refused
		if !errors.As(err, &refused) || refused.Status != status || !strings.Contains(err.Error(), title) {
			t.Error(status, err)
		}
		if seen := n.requests(""); len(seen) != 1 {
			t.Error(status, "is final", seen)
		}
	}
}

func TestAGatewayThatAnswersForLongEndsAnAttemptWithoutADeadline(t *testing.T) {
	for _, status := range []int{404, 429, 502, 503} {
		status := status
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			t.Parallel()
			n := start(t, answers(status, page("Not now")))
			began := now()
			err := cluster(t, n).Lock("a", Options{}).Lock(context.Background())
			var refused *Refused
			if !errors.As(err, &refused) || refused.Status != status || !strings.Contains(err.Error(), "Not now") {
				t.Error(err)
			}
			if now()-began < strangeMax {
				t.Error("it was not tried again")
			}
		})
	}
}

func TestANodeThatTricklesIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	go func() {
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer connection.Close()
				_, err := connection.Write([]byte("HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n{"))
				for err == nil {
					time.Sleep(100 * time.Millisecond)
					_, err = connection.Write([]byte(" "))
				}
			}()
		}
	}()
	slow := "http://" + listener.Addr().String()
	good := start(t, worksFor(shortTTL))
	c, err := New(Config{URLs: []string{slow, good.URL}, TTL: shortTTL})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	l := c.Lock("a", Options{})
	if err := l.Lock(ctx); err != nil || !l.Unlock() {
		t.Error(err)
	}
}

func TestADocumentWithManyLevelsOrOfAnotherShapeIsNoAnswer(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		strings.Repeat("[", 100_000), strings.Repeat(`{"a":`, 100_000), "null", `"held"`, "7", `{"lease":{},"secret":[]}`,
		`{"state":["held"]}`, `{"state":"held","token":7}`, `{"state":"held","token":"` + strings.Repeat("9", 40) + `"}`,
	} {
		text := text
		bad := start(t, func(r request, _ int) (int, string) {
			if r.path == "/v1/leases" {
				return 201, text
			}
			return 200, text
		})
		c := cluster(t, bad, start(t, answers(404, "")), start(t, works))
		if l := take(t, c); l.Token() == 0 || !l.Unlock() {
			t.Error(text[:5])
		}
	}
}

func TestThePathOfAURLStandsBeforeThatOfEachRequest(t *testing.T) {
	t.Parallel()
	n := start(t, func(r request, count int) (int, string) {
		if !strings.HasPrefix(r.path, "/gw/a%20b/v1/") {
			return 404, "elsewhere"
		}
		r.path = strings.TrimPrefix(r.path, "/gw/a%20b")
		return works(r, count)
	})
	for _, url := range []string{n.URL + "/gw/a%20b", strings.Replace(n.URL, "http", "HTTP", 1) + "/gw/a b//"} {
		c, err := New(Config{URLs: []string{url}, TTL: longTTL})
		if err != nil {
			t.Fatal(err)
		}
		if !take(t, c).Unlock() {
			t.Error(url)
		}
	}
}

func TestNamesThatAreNoTextAndTimesThatAreNoneAreRefused(t *testing.T) {
	t.Parallel()
	n := start(t, works)
	c := cluster(t, n)
	for _, name := range []string{"a\xed\xa0\x80", "\xff/b"} {
		parts := c.Locks([]Part{{Name: "a"}, {Name: name}}, Options{})
		for _, l := range []*Lock{c.Lock(name, Options{}), parts, c.Election(name).Candidate("v", Options{})} {
			if err := l.Lock(context.Background()); err == nil || !strings.Contains(err.Error(), "UTF-8") {
				t.Error(name, err)
			}
		}
	}
	if seen := n.requests(""); len(seen) != 0 {
		t.Error(seen)
	}
	for _, ttl := range []time.Duration{-1, 1, -time.Hour} {
		if _, err := New(Config{URLs: []string{n.URL}, TTL: ttl}); err == nil {
			t.Error(ttl)
		}
	}
	for _, url := range []string{"ftp://h", "http://", "h:1", "http://u:p@h", "http://h?a=b", "http://h/#a"} {
		if _, err := New(Config{URLs: []string{url}}); err == nil {
			t.Error(url)
		}
	}
	if _, err := New(Config{URLs: []string{"http://a_b:1"}}); err != nil {
		t.Error(err)
	}
}

func TestWhateverACallbackPanicsWithGivesThePlaceBack(t *testing.T) {
	t.Parallel()
	for _, thrown := range []any{errors.New("no"), "text", http.ErrAbortHandler} {
		n := start(t, but("/acquire", 202, `{"state": "waiting", "position": 1}`))
		l := cluster(t, n).Lock("a", Options{OnWaiting: func(int) { panic(thrown) }})
		func() {
			defer func() {
				if caught := recover(); caught != thrown {
					t.Error(caught)
				}
			}()
			_ = l.Lock(context.Background())
		}()
		waitFor(t, "the end of the lease", func() bool { return n.deletes() == 1 })
	}
}
