package rowlock

import (
	"context"
	"encoding/json"
	"net/http"
	"strconv"
	"sync"
	"time"
)

// AskOptions of Cluster.Ask. The zero value asks without a deadline.
type AskOptions struct {
	// Within is from a second to an hour: the cluster takes the lock away at that deadline. It is for an
	// operator's token.
	Within time.Duration
	// Label is what the holder sees of the caller, beside what the cluster knows.
	Label string
}

// Question says why a lock is wanted that is held: its holder is asked to give it back.
type Question struct {
	// Lock is the path of the lock.
	Lock string
	// Token is that of the holder that is asked.
	Token uint64
	// Reason of at most 256 bytes.
	Reason string
	// By is who asks, as the cluster knows it.
	By string
	// Asked is when it was asked.
	Asked time.Time
	// Revoked is when the lock is lost and the cluster takes it away; zero: never.
	Revoked time.Time
}

// Ask asks the holders of a lock to give it back: they learn it with their next keep-alive (Lock.Asked). The
// result is how many holders were asked; 0: the lock is free. The error is that of ctx, or a *Refused.
func (c *Cluster) Ask(ctx context.Context, name, reason string, options AskOptions) (int, error) {
	path, err := address(name)
	if err != nil {
		return 0, err
	}
	body := map[string]any{"reason": reason}
	if options.Within != 0 {
		body["within_ms"] = options.Within.Milliseconds()
	}
	put(body, "label", options.Label)
	until := now() + answerMax
	each := c.transport.share(ctx, until)
	found, err := c.transport.call(ctx, http.MethodPost, "/v1/locks/"+path+"/ask", body, until, each, isAsked)
	switch {
	case err != nil:
		return 0, err
	case found.Status == http.StatusNotFound:
		return 0, refusal(found)
	}
	return strconv.Atoi(string(found.Asked))
}

func isAsked(found *answer) bool {
	if found.Status == http.StatusNotFound {
		return found.Title != ""
	}
	_, err := strconv.Atoi(string(found.Asked))
	return found.Status == http.StatusOK && err == nil
}

// Asked has the newest question to the holder, once each. The lock stays held, until Question.Revoked at most:
// unlock it where the work can be cut. It is never closed, and nil when the lock was not taken.
func (l *Lock) Asked() <-chan Question {
	held := l.current()
	if held == nil {
		return nil
	}
	return held.lease.heard.news
}

// question is one of the field asked of an answer.
type question struct {
	Lock        string `json:"lock"`
	Token       string `json:"token"`
	Reason      string `json:"reason"`
	By          string `json:"by"`
	AskedMsAgo  *int64 `json:"asked_ms_ago"`
	RevokedInMs *int64 `json:"revoked_in_ms"`
}

// heard are the questions about what a lease holds, from answers of the cluster, which repeat them.
type heard struct {
	mutex sync.Mutex
	last  *question
	// news has room for one.
	news chan Question
}

// hear gives the time until a lock is taken away.
func (h *heard) hear(asked json.RawMessage) time.Duration {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	left := forever
	var said []question
	if json.Unmarshal(asked, &said) != nil {
		// There is no question.
		return left
	}
	var newest *question
	var token uint64
	for at := range said {
		one := &said[at]
		number, err := strconv.ParseUint(one.Token, 10, 64)
		if err != nil || one.AskedMsAgo == nil || *one.AskedMsAgo < 0 {
			continue
		}
		if one.RevokedInMs != nil && *one.RevokedInMs >= 0 && *one.RevokedInMs < ttlMaxMs {
			left = shortest(left, time.Duration(*one.RevokedInMs)*time.Millisecond)
		}
		if newest == nil || *one.AskedMsAgo < *newest.AskedMsAgo {
			newest, token = one, number
		}
	}
	if newest == nil {
		return left
	}
	// The same question grows older from answer to answer.
	isNews := h.last == nil || !newest.isSame(h.last) || *newest.AskedMsAgo < *h.last.AskedMsAgo
	h.last = newest
	if isNews {
		// Only the newest is of interest.
		select {
		case <-h.news:
		default:
		}
		h.news <- newest.read(token)
	}
	return left
}

func (q *question) isSame(other *question) bool {
	isFor := q.Lock == other.Lock && q.Token == other.Token
	return isFor && q.Reason == other.Reason && q.By == other.By && (q.RevokedInMs == nil) == (other.RevokedInMs == nil)
}

func (q *question) read(token uint64) Question {
	at := time.Now()
	found := Question{Lock: q.Lock, Token: token, Reason: q.Reason, By: q.By}
	found.Asked = at.Add(-time.Duration(*q.AskedMsAgo) * time.Millisecond)
	if q.RevokedInMs != nil {
		found.Revoked = at.Add(time.Duration(*q.RevokedInMs) * time.Millisecond)
	}
	return found
}
