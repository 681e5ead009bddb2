//go:build !linux

package rowlock

import (
	"sync"
	"time"
)

var clock = struct {
	sync.Mutex
	last time.Time
	sum  time.Duration
}{last: time.Now()}

// now is a moment on a clock that never goes back. Where the machine has slept, the wall clock has made the
// longer step of the two, and counts. One that is put forward makes leases end early, and never late.
func now() time.Duration {
	clock.Lock()
	defer clock.Unlock()
	at := time.Now()
	step, wall := at.Sub(clock.last), at.Round(0).Sub(clock.last.Round(0))
	if wall > step {
		step = wall
	}
	clock.last = at
	clock.sum += step
	return clock.sum
}
