package rowlock

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

func asks(token, reason, rest string) string {
	return `{"lock": "/locks/a", "token": "` + token + `", "reason": "` + reason + `", "by": "ops", ` + rest + `}`
}

func TestAHolderHearsEachQuestionOnceAndLosesTheLockAtTheDeadline(t *testing.T) {
	t.Parallel()
	const own, left = "9007199254740993", 4 * time.Second
	// Of something else than a node.
	held := `{"state": "held", "token": "` + own + `", "asked": [` + asks("x", "no token", `"asked_ms_ago": 1`) + ", " +
		asks(own, "no time", `"asked_ms_ago": -1`) + `]}`
	// What is said while so many were heard, the last of it again and again: an answer may come too late.
	said := [][]string{
		{asks(own, "first", `"asked_ms_ago": 10`)},
		// Told again, older; then asked again.
		{asks(own, "first", `"asked_ms_ago": 200`), asks(own, "first", `"asked_ms_ago": 7`)},
		{asks(own, "first", `"asked_ms_ago": 300`) + ", " + asks(own, "second", `"asked_ms_ago": 20`)},
		{asks(own, "last", fmt.Sprintf(`"asked_ms_ago": 5, "revoked_in_ms": %d`, left.Milliseconds()))},
		{asks(own, "last", fmt.Sprintf(`"asked_ms_ago": 5, "revoked_in_ms": %d`, left.Milliseconds()))},
	}
	var turn atomic.Int32
	var again atomic.Bool
	n := start(t, func(r request, count int) (int, string) {
		if strings.HasSuffix(r.path, "/acquire") {
			return 200, held
		}
		if !strings.HasSuffix(r.path, "/keepalive") {
			return worksFor(shortTTL)(r, count)
		}
		at := turn.Load()
		all := said[at]
		if len(all) > 1 {
			said[at] = all[1:]
		} else if at == 1 {
			again.Store(true)
		}
		return 200, fmt.Sprintf(`{"valid_for_ms": %d, "asked": [%s]}`, shortTTL.Milliseconds(), all[0])
	})
	l := take(t, cluster(t, n))
	var heard []string
	var newest Question
	for len(heard) < 4 {
		select {
		case newest = <-l.Asked():
			heard = append(heard, newest.Reason)
			turn.Add(1)
		case <-time.After(patience):
			t.Fatal("not in time", heard)
		}
	}
	if !reflect.DeepEqual(heard, []string{"first", "first", "second", "last"}) || !again.Load() {
		t.Error(heard, "what is told again is no news")
	}
	if newest.Token != 9007199254740993 || newest.Lock != "/locks/a" || newest.By != "ops" {
		t.Error(newest)
	}
	if until := time.Until(newest.Revoked); until > left || time.Since(newest.Asked) < 0 {
		t.Error(newest)
	}
	lostBy(t, l, now()+left)
	if now() < l.current().lease.revoked || len(l.Asked()) != 0 {
		t.Error("it is lost at the deadline, and each question comes once")
	}
}

func TestAQuestionThatCameWithTheLockIsHeard(t *testing.T) {
	held := `{"state": "held", "token": "7", "asked": [` + asks("7", "waited for", `"asked_ms_ago": 0`) + `]}`
	c := cluster(t, start(t, but("/acquire", 200, held)))
	l := take(t, c)
	if question := <-l.Asked(); question.Reason != "waited for" || !question.Revoked.IsZero() {
		t.Error(question)
	}
	l.Unlock()
	if c.Lock("never", Options{}).Asked() != nil {
		t.Error("it was not taken")
	}
}

func TestHoldersAreAskedForTheLock(t *testing.T) {
	said := []string{`{}`, `{}`, `{"asked": 1, "holders": [{"token": "7", "place": "p", "label": "l", "since_ms": 5}]}`,
		`{"asked": 0, "holders": []}`, `{"title": "Not Found"}`, `{"title": "Forbidden"}`}
	status := []int{503, 200, 200, 200, 404, 403}
	n := start(t, func(_ request, count int) (int, string) { return status[count-1], said[count-1] })
	c, ctx := cluster(t, n), context.Background()
	asked, err := c.Ask(ctx, "ci/a b", "the next release", AskOptions{1500 * time.Millisecond, "me"})
	if err != nil || asked != 1 {
		t.Error(asked, err)
	}
	sent := n.requests("/v1/locks/ci/a%20b/ask")[2].body
	if !reflect.DeepEqual(sent, map[string]any{"reason": "the next release", "within_ms": 1500.0, "label": "me"}) {
		t.Error(sent)
	}
	if asked, err := c.Ask(ctx, "a", "why", AskOptions{}); err != nil || asked != 0 {
		t.Error(asked, err)
	}
	for _, status := range []int{404, 403} {
		var refused *Refused
		if _, err := c.Ask(ctx, "a", "why", AskOptions{}); !errors.As(err, &refused) || refused.Status != status {
			t.Error(err)
		}
	}
}
