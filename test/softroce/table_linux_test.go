package softroce

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
)

// row is a line of the table that tools/test.sh shows: what a program of Linux
// and we did, and how it ended.
type row struct{ program, linux, pathMTU, size, how, result string }

var table struct {
	sync.Mutex
	rows []row
}

// record adds a row, when the test that it is about has ended.
func record(t *testing.T, r row) {
	if t.Failed() {
		r.result = "FAILED"
	}
	t.Log(r)
	table.Lock()
	defer table.Unlock()
	table.rows = append(table.rows, r)
}

func (r row) String() string {
	return strings.TrimRight(fmt.Sprintf("%-16s %-9s %8s %9s  %-22s %s", r.program, r.linux, r.pathMTU, r.size, r.how, r.result), " ")
}

// writeTable writes the table to the file that tools/test.sh has named.
func writeTable() error {
	file := os.Getenv("ACCELFAB_SOFTROCE_TABLE")
	if file == "" || len(table.rows) == 0 {
		return nil
	}
	var b strings.Builder
	fmt.Fprintln(&b, row{"program", "Linux is", "path MTU", "bytes", "how", "result"})
	for _, r := range table.rows {
		fmt.Fprintln(&b, r)
	}
	return os.WriteFile(file, []byte(b.String()), 0o644)
}
