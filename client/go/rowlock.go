// Package rowlock takes locks of a Rowlock cluster by HTTP, with nothing but the standard library.
//
// A Lock has a lease of its own at the cluster, which a goroutine keeps alive. When that fails for the time of
// the lease, the lock is lost: Lock.Context is cancelled before somebody else can be granted it.
package rowlock

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"
	"unicode/utf8"
)

// Config says where a cluster is.
type Config struct {
	// URLs of the nodes' api listeners. Name all of them, so that the next one is asked when one fails. A path, such
	// as that of a gateway, stands before that of each request.
	URLs []string
	// Token goes into Authorization: Bearer, if it is not empty.
	Token string
	// CAFile has the authorities that are trusted for https, as PEM. Empty: those of the system. HTTP has its own.
	CAFile string
	// TTL is the time of leases: the locks of a program that has died are free after it. 10 s if it is zero.
	TTL time.Duration
	// HTTP makes the requests; nil: one that keeps connections. It must not follow redirects, nor have a
	// timeout of less than a minute.
	HTTP *http.Client
	// OnUnreleased gets each release of Lock.UnlockLater that has failed: ErrLost where the lock was not held any more.
	// nil: a line of the standard logger.
	OnUnreleased func(lock string, err error)
	// Observer gets the waits and holds; nil: none does.
	Observer Observer
}

// FromEnv is the configuration by ROWLOCK_API (URLs with commas between; else http://127.0.0.1:8481), ROWLOCK_TOKEN,
// and ROWLOCK_TLS_CA as CAFile.
func FromEnv() Config {
	urls := os.Getenv("ROWLOCK_API")
	if urls == "" {
		urls = "http://127.0.0.1:8481"
	}
	return Config{URLs: strings.Split(urls, ","), Token: os.Getenv("ROWLOCK_TOKEN"), CAFile: os.Getenv("ROWLOCK_TLS_CA")}
}

// Cluster is a cluster as its client sees it. It is safe for concurrent use.
type Cluster struct {
	transport *transport
	ttl       time.Duration
	observer  Observer
	names     names
}

// New makes a client. Nothing is sent before a lock is asked for.
func New(config Config) (*Cluster, error) {
	transport, err := newTransport(config)
	if err != nil {
		return nil, err
	}
	ttl := config.TTL
	if ttl == 0 {
		ttl = 10 * time.Second
	}
	if ttl < time.Millisecond {
		return nil, fmt.Errorf("rowlock: not the time of a lease: %v", ttl)
	}
	return &Cluster{transport: transport, ttl: ttl, observer: config.Observer}, nil
}

// Flush waits for the releases of Lock.UnlockLater that are under way, until ctx ends: before the end of the program,
// for example.
func (c *Cluster) Flush(ctx context.Context) error {
	return c.transport.flush(ctx)
}

// Mode says with whom a lock is shared.
type Mode string

const (
	// Exclusive is for one holder. It is the mode of an empty string, too.
	Exclusive Mode = "exclusive"
	// Shared is for all who ask for Shared.
	Shared Mode = "shared"
	// Permits is for holders of at most Options.Limit permits together.
	Permits Mode = "permits"
)

// Options of a lock. The zero value is an exclusive lock.
type Options struct {
	Mode Mode
	// Permits that are wanted, of Limit that the lock has.
	Permits, Limit int
	// Owner is for deadlock detection: attempts of one owner are one program's that does one thing at a time.
	Owner string
	// Label is what people see in the queue.
	Label string
	// OnWaiting is called with the position in the queue each time the cluster tells it.
	OnWaiting func(position int)
	// NoKeepAlive starts no goroutine that keeps the lock: call Lock.KeepAlive in time. Nothing notices that the
	// program is late: Done of Lock.Context is not closed before the program has called its Err.
	NoKeepAlive bool
	// MetricsName is what the observer gets as the name: one of a few, not of one for each lock. Empty: "default".
	MetricsName string
}

// Part is one of several locks that are taken together.
type Part struct {
	Name           string
	Mode           Mode
	Permits, Limit int
}

// ErrLost means that the lease has ended: what it held is free, and its place in the queue is gone.
var ErrLost = errors.New("rowlock: the lease is over")

// ErrHeld means that this Lock is held already, or asked for by another goroutine.
var ErrHeld = errors.New("rowlock: this Lock is in use")

// Holder is who holds a lock, as far as the cluster says it.
type Holder struct {
	Token   string `json:"token"`
	Place   string `json:"place"`
	Label   string `json:"label"`
	SinceMs int64  `json:"since_ms"`
}

// Busy means that TryLock found the lock taken.
type Busy struct {
	// Holder may be nil.
	Holder *Holder
}

func (busy *Busy) Error() string {
	if busy.Holder == nil {
		return "rowlock: somebody else has the lock"
	}
	return fmt.Sprintf("rowlock: %q has the lock with token %s", busy.Holder.Label, busy.Holder.Token)
}

// Refused means that the cluster does not allow it.
type Refused struct {
	// Status is that of HTTP.
	Status int
	// Title and Detail are those of the problem document (RFC 9457).
	Title, Detail string
}

func (refused *Refused) Error() string {
	if refused.Detail == "" {
		return fmt.Sprintf("rowlock: %d %s", refused.Status, refused.Title)
	}
	return fmt.Sprintf("rowlock: %d %s: %s", refused.Status, refused.Title, refused.Detail)
}

// address is a name, or a path, as a part of an address; its slashes stay.
func address(name string) (string, error) {
	if !utf8.ValidString(name) {
		return "", fmt.Errorf("rowlock: not a name: %q is not UTF-8", name)
	}
	parts := strings.Split(name, "/")
	for at, part := range parts {
		isPath := at == 0 && len(parts) > 1
		if part == "" && !isPath || part == "." || part == ".." {
			return "", fmt.Errorf("rowlock: not a name: %q", name)
		}
		parts[at] = url.PathEscape(part)
	}
	return strings.Join(parts, "/"), nil
}
