package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/accelfab/accelfab/fabric"
)

// manager is the service manager that started this process and wants to hear of
// it on a datagram socket (sd_notify(3)). The zero value is none.
type manager struct {
	socket   string
	watchdog time.Duration // the longest time without a sign of life; 0: it does not care
}

// startedBy reads what a service manager leaves in the environment. What the
// variables say of another process is not for this one.
func startedBy(getenv func(string) string, pid int) (manager, error) {
	m := manager{socket: getenv("NOTIFY_SOCKET")}
	period := getenv("WATCHDOG_USEC")
	if of := getenv("WATCHDOG_PID"); period == "" || of != "" && of != strconv.Itoa(pid) {
		return m, nil
	}
	usec, err := strconv.ParseUint(period, 10, 63)
	if max := uint64(24 * time.Hour / time.Microsecond); err != nil || usec == 0 || usec > max {
		return m, fmt.Errorf("WATCHDOG_USEC is %q: want 1 to %d, microseconds", period, max)
	}
	m.watchdog = time.Duration(usec) * time.Microsecond
	return m, nil
}

// tellTime is what the manager has to take a message.
const tellTime = time.Second

// tell sends assignments such as READY=1, in one message. Without a manager it
// does nothing.
func (m manager) tell(assignments ...string) error {
	if m.socket == "" {
		return nil
	}
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: m.socket, Net: "unixgram"}) // which knows @ for abstract ones
	if err != nil {
		return fmt.Errorf("NOTIFY_SOCKET: %w", err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(tellTime))
	if _, err := conn.Write([]byte(strings.Join(assignments, "\n"))); err != nil {
		return fmt.Errorf("NOTIFY_SOCKET: %w", err)
	}
	return nil
}

// say tells, and logs what the manager did not get.
func (m manager) say(log *slog.Logger, assignments ...string) {
	if err := m.tell(assignments...); err != nil {
		log.Warn("the service manager was not told", "what", assignments[0], "error", err)
	}
}

// beat gives the manager a sign of life at half of the time that it allows, each
// time that alive answers within that half. It returns when ctx is done, at
// once if the manager does not want any.
func (m manager) beat(ctx context.Context, log *slog.Logger, alive func(context.Context) error) {
	if m.watchdog == 0 || m.socket == "" {
		return
	}
	half := m.watchdog / 2
	tick := time.NewTicker(half)
	defer tick.Stop()
	for {
		asked, cancel := context.WithTimeout(ctx, half)
		err := alive(asked)
		cancel()
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			log.Error("no sign of life for the service manager", "error", err)
		default:
			m.say(log, "WATCHDOG=1")
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// follow tells the manager how the node is, again when that changes, until ctx
// is done.
func (m manager) follow(ctx context.Context, log *slog.Logger, fab *fabric.Fabric) {
	if m.socket == "" {
		return
	}
	told := ""
	for {
		changed := fab.HealthChanged()
		h := fab.NodeHealth()
		status := "STATUS=Serving, the node is " + string(h.Status)
		if h.Reason != "" {
			status += " (" + string(h.Reason) + ")"
		}
		if status != told {
			m.say(log, status)
			told = status
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// serving says that the daemon serves, and goes on telling of it. The function
// that it gives says that the daemon ends, and ends that.
func (m manager) serving(log *slog.Logger, fab *fabric.Fabric) (ending func()) {
	m.say(log, "READY=1")
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { m.beat(ctx, log, fab.Alive) })
	wg.Go(func() { m.follow(ctx, log, fab) })
	return func() {
		cancel()
		wg.Wait()
		m.say(log, "STOPPING=1", "STATUS=Ending, calls in progress are finished")
	}
}
