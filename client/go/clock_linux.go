package rowlock

import (
	"syscall"
	"time"
	"unsafe"
)

const clockBoottime = 7

// now is a moment on a clock that never goes back and also runs while the machine sleeps: leases do, too.
// The clock of package time stands still then.
func now() time.Duration {
	var spec syscall.Timespec
	_, _, failed := syscall.Syscall(syscall.SYS_CLOCK_GETTIME, clockBoottime, uintptr(unsafe.Pointer(&spec)), 0)
	if failed != 0 {
		panic("rowlock: the kernel has no CLOCK_BOOTTIME: " + failed.Error())
	}
	return time.Duration(spec.Nano())
}
