package server

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/accelfab/accelfab/fabric"
)

// The paths that the HTTP door has besides those of the contract.
const (
	pathAlive   = "/healthz"
	pathReady   = "/readyz"
	pathOpenAPI = "/openapi.json"
)

// aliveTime is what a probe waits for the daemon's parts.
const aliveTime = 2 * time.Second

// answerAlive says whether the daemon is alive, which is not whether the node is
// well: to start the daemon again mends no device.
func (s *Server) answerAlive(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), aliveTime)
	defer cancel()
	if err := s.fabric.Alive(ctx); err != nil {
		answerProbe(w, http.StatusServiceUnavailable, clip(err.Error(), maxMessage))
		return
	}
	answerProbe(w, http.StatusOK, "alive")
}

// answerReady says whether work may be given to the node: the daemon does not
// end, changes can be recorded, and the node is not FAILED or unknown. Of a node
// that is not ready it tells which components are not well.
func (s *Server) answerReady(w http.ResponseWriter, r *http.Request) {
	h := s.fabric.NodeHealth()
	switch {
	case s.stopping():
		answerProbe(w, http.StatusServiceUnavailable, "the daemon is ending")
	case h.Status == fabric.HealthFailed, h.Status == fabric.HealthUnknown, !takesChanges(&h):
		answerProbe(w, http.StatusServiceUnavailable, unwell(&h))
	default:
		answerProbe(w, http.StatusOK, "ready")
	}
}

// unwell lists the first components that are not well.
func unwell(h *fabric.Health) string {
	const most = 20
	lines, more := []string{"the node is " + string(h.Status)}, 0
	for _, c := range h.Components {
		switch {
		case c.Reason == "":
		case len(lines) > most:
			more++
		default:
			lines = append(lines, fmt.Sprintf("%s: %s %s", clip(c.Name, maxText), c.Status, c.Reason))
		}
	}
	if more > 0 {
		lines = append(lines, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(lines, "\n")
}

func answerProbe(w http.ResponseWriter, code int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(code)
	fmt.Fprintln(w, text) // nothing is done about a prober that went away
}
