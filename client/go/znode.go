package rowlock

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// AnyVersion of a znode will do.
const AnyVersion = -1

// ErrStale means that a write came too late: the lock was lost. A copy of the write whose answer was lost may
// have taken effect before.
var ErrStale = errors.New("rowlock: the token does not hold the lock any more")

// fencedWrite is a body that is no JSON, with what makes it a write of this holder that takes effect once.
type fencedWrite struct {
	data   []byte
	header http.Header
}

// Create makes a znode, only while this lock is held; its version. The error is ErrStale where it is not, a
// *Refused (409: there is one), or that of ctx.
func (l *Lock) Create(ctx context.Context, path string, data []byte) (int32, error) {
	return l.write(ctx, http.MethodPost, path, data, AnyVersion, http.StatusCreated)
}

// Set sets the data of a znode as Create makes one, if it has the version or that is AnyVersion; its new
// version. A *Refused has the status 412 for another version, and 404 for no znode.
func (l *Lock) Set(ctx context.Context, path string, data []byte, version int32) (int32, error) {
	return l.write(ctx, http.MethodPut, path, data, version, http.StatusOK)
}

// Delete deletes a znode as Set changes one.
func (l *Lock) Delete(ctx context.Context, path string, version int32) error {
	_, err := l.write(ctx, http.MethodDelete, path, nil, version, http.StatusNoContent)
	return err
}

func (l *Lock) write(
	ctx context.Context, method, path string, data []byte, version int32, done int,
) (int32, error) {
	held := l.current()
	if held == nil || len(held.tokens) != 1 {
		return 0, ErrStale
	}
	lock := strings.TrimSuffix(strings.TrimPrefix(l.verify[0], "/v1/locks/"), "/verify")
	header := http.Header{
		FenceHeader:       {lock + ";" + held.tokens[0]},
		"Rowlock-Lease":   {held.lease.secret},
		"Idempotency-Key": {requestID()},
	}
	if version != AnyVersion {
		header.Set("If-Match", strconv.Quote(strconv.Itoa(int(version))))
	}
	parts := strings.Split(path, "/")
	for at, part := range parts {
		parts[at] = url.PathEscape(part)
	}
	// A late holder is told so by the cluster.
	until := longest(held.lease.until(), now()+time.Second)
	each := longest((until-now())/3, 500*time.Millisecond)
	isKnown := func(found *answer) bool {
		if found.Status == http.StatusNotFound {
			return found.Title != ""
		}
		return found.Status == done && (done == http.StatusNoContent || found.Stat != nil)
	}
	address := "/v1/znodes" + strings.Join(parts, "/")
	found, err := l.cluster.transport.call(ctx, method, address, &fencedWrite{data, header}, until, each, isKnown)
	switch {
	case err != nil:
		return 0, err
	case found.Status == http.StatusNotFound && held.lease.lost():
		return 0, ErrStale
	case found.Status == http.StatusNotFound:
		return 0, refusal(found)
	case found.Stat == nil:
		return 0, nil
	}
	return found.Stat.Version, nil
}
