package rowlock

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// A request for the next leader waits so long.
const leaderWait = 30 * time.Second

// Election is an election: whoever holds its lock leads.
type Election struct {
	cluster *Cluster
	path    string
	lock    string
	// As observers get it.
	name string
	err  error
}

// Leader is who leads an election.
type Leader struct {
	// Value is what it says of itself.
	Value string
	// Token is that of its lead.
	Token uint64
	// SinceMs is when its lead began, in milliseconds since 1970.
	SinceMs int64
}

// Election makes a handle of the election of this name. Nothing is sent.
func (c *Cluster) Election(name string) *Election {
	path, err := address(name)
	return &Election{
		cluster: c, path: "/v1/elections/" + url.PathEscape(name), lock: "/v1/locks/@elections/" + path,
		name: "@elections/" + name, err: err,
	}
}

// Candidate makes a handle of the lead: Lock campaigns, Unlock resigns. Others see value. Owner,
// OnWaiting, NoKeepAlive and MetricsName of the options count.
func (e *Election) Candidate(value string, options Options) *Lock {
	l := &Lock{
		cluster: e.cluster, ask: e.path + "/campaign", body: map[string]any{}, free: []string{e.path + "/resign"},
		verify: []string{e.lock + "/verify"}, again: true, onWaiting: options.OnWaiting, err: e.err,
		name: e.name, metricsName: options.MetricsName, keeps: !options.NoKeepAlive,
	}
	put(l.body, "value", value)
	put(l.body, "owner", options.Owner)
	return l
}

// Leader is who leads at a moment of this call; nil: nobody.
func (e *Election) Leader(ctx context.Context) (*Leader, error) {
	until := now() + answerMax
	leader, _, err := e.look(ctx, "", until, e.cluster.transport.share(ctx, until))
	return leader, err
}

// Observe calls told with the leader (nil: nobody) now and at every change, until ctx ends or told returns an
// error, which it returns. Who led only for a moment may be left out.
func (e *Election) Observe(ctx context.Context, told func(*Leader) error) error {
	query, each, isFirst := "", answerMax, true
	var last Leader
	var lastZxid string
	for {
		leader, zxid, err := e.look(ctx, query, forever, each)
		if err != nil {
			return err
		}
		seen := Leader{}
		if leader != nil {
			seen = *leader
		}
		if isFirst || zxid != lastZxid || seen != last {
			if err := told(leader); err != nil {
				return err
			}
		} else {
			pause(ctx, roundPause)
		}
		isFirst, last, lastZxid = false, seen, zxid
		query = fmt.Sprintf("?after=%s&wait_ms=%d", url.QueryEscape(zxid), leaderWait.Milliseconds())
		each = leaderWait + answerMax
	}
}

func (e *Election) look(ctx context.Context, query string, until, each time.Duration) (*Leader, string, error) {
	if e.err != nil {
		return nil, "", e.err
	}
	found, err := e.cluster.transport.call(ctx, http.MethodGet, e.path+"/leader"+query, nil, until, each, isLed)
	if err != nil {
		return nil, "", err
	}
	if found.Leader == nil {
		return nil, found.Zxid, nil
	}
	token, err := strconv.ParseUint(found.Leader.Token, 10, 64)
	if err != nil {
		return nil, "", errors.New("rowlock: not a token: " + found.Leader.Token)
	}
	return &Leader{found.Leader.Value, token, found.Leader.SinceMs}, found.Zxid, nil
}

func isLed(found *answer) bool {
	isNumber := found.Leader == nil || areNumbers([]string{found.Leader.Token})
	return found.Status == http.StatusOK && found.Zxid != "" && isNumber
}
