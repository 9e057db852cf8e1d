package measure

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

// History has the time at which each object first reached a state.
type History struct {
	lock  sync.Mutex
	times map[string]map[string]time.Time
}

// Reach notes that an object is in a state now, unless it was before.
func (h *History) Reach(state, name string) {
	h.lock.Lock()
	defer h.lock.Unlock()
	if h.times == nil {
		h.times = map[string]map[string]time.Time{}
	}
	if h.times[state] == nil {
		h.times[state] = map[string]time.Time{}
	}
	if _, seen := h.times[state][name]; !seen {
		h.times[state][name] = time.Now()
	}
}

// Forget removes all times.
func (h *History) Forget() {
	h.lock.Lock()
	defer h.lock.Unlock()
	clear(h.times)
}

// Reached returns when these objects reached a state, and which of them have not.
func (h *History) Reached(state string, names []string) (found map[string]time.Time, missing []string) {
	h.lock.Lock()
	defer h.lock.Unlock()
	found = map[string]time.Time{}
	for _, name := range names {
		if at, reached := h.times[state][name]; reached {
			found[name] = at
		} else {
			missing = append(missing, name)
		}
	}
	return found, missing
}

// Unexpected complains about pods that are none of those that run, or have no node, by the node of each. It returns ""
// if there is none.
func Unexpected(nodeOf map[string]string, running []string) string {
	var complaints []string
	for _, pod := range slices.Sorted(maps.Keys(nodeOf)) {
		node := nodeOf[pod]
		switch {
		case !slices.Contains(running, pod):
			complaints = append(complaints, fmt.Sprintf("pod %s is left of an earlier measurement, on node %q", pod, node))
		case node == "":
			complaints = append(complaints, fmt.Sprintf("pod %s has no node: another pod of its name ran before", pod))
		}
	}
	return strings.Join(complaints, "; ")
}
