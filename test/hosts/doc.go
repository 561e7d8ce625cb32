// Package hosts holds tests of device hosts as processes: daemons and hosts are
// killed, stopped and replaced under traffic.
package hosts
