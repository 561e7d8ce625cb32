//go:build !linux

package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"time"
)

var errLabOnLinux = fmt.Errorf("a lab runs on Linux alone, as the daemon does: %w", errors.ErrUnsupported)

func identify(int) (process, error)       { return process{}, errLabOnLinux }
func (p process) end(time.Duration) error { return errLabOnLinux }
func detach(*exec.Cmd) error              { return errLabOnLinux }
func lockDir(string) (*os.File, error)    { return nil, errLabOnLinux }
func ours(os.FileInfo) bool               { return false }
