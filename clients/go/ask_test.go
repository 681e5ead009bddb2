package rowlock

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"
)

func asks(token, reason, rest string) string {
	return `{"lock": "/locks/a", "token": "` + token + `", "reason": "` + reason + `", "by": "ops", ` + rest + `}`
}

func TestAHolderHearsEachQuestionOnceAndLosesTheLockAtTheDeadline(t *testing.T) {
	const own = "9007199254740993"
	last := asks(own, "last", `"asked_ms_ago": 5, "revoked_in_ms": 500`)
	// Of something else than a node; told again, older; then asked again, and with other words.
	said := []string{
		asks("x", "no token", `"asked_ms_ago": 1`), asks(own, "no time", `"asked_ms_ago": -1`),
		asks(own, "first", `"asked_ms_ago": 10`), asks(own, "first", `"asked_ms_ago": 200`),
		asks(own, "first", `"asked_ms_ago": 7`),
		asks(own, "first", `"asked_ms_ago": 300`) + ", " + asks(own, "second", `"asked_ms_ago": 20`), last,
	}
	turn := 0
	n := start(t, func(r request, count int) (int, string) {
		if !strings.HasSuffix(r.path, "/keepalive") {
			return works(r, count)
		}
		if turn < len(said) {
			turn++
		}
		return 200, `{"valid_for_ms": 600, "asked": [` + said[turn-1] + `]}`
	})
	l := take(t, cluster(t, n))
	var heard []string
	var newest Question
	for len(heard) < 4 {
		select {
		case newest = <-l.Asked():
			heard = append(heard, newest.Reason)
		case <-time.After(10 * time.Second):
			t.Fatal("not in time", heard)
		}
	}
	if !reflect.DeepEqual(heard, []string{"first", "first", "second", "last"}) {
		t.Error(heard)
	}
	if newest.Token != 9007199254740993 || newest.Lock != "/locks/a" || newest.By != "ops" {
		t.Error(newest)
	}
	if left := time.Until(newest.Revoked); left > 500*time.Millisecond || time.Since(newest.Asked) < 0 {
		t.Error(newest)
	}
	soon(t, l.Context().Done())
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
