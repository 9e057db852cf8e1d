package measure

import (
	"slices"
	"strings"
	"testing"
)

// A pod that is not measured runs all the time, and is seen again while the last measured one has no node.
func TestAnObjectOfAnotherNameDoesNotCount(t *testing.T) {
	var h History
	h.Reach("running", "worker0")
	h.Reach("running", "source")
	found, missing := h.Reached("running", []string{"worker0", "worker1"})
	if len(found) != 1 || found["worker0"].IsZero() || !slices.Equal(missing, []string{"worker1"}) {
		t.Errorf("found %v, missing %v", found, missing)
	}
	h.Reach("running", "worker1")
	found, missing = h.Reached("running", []string{"worker0", "worker1"})
	if len(found) != 2 || len(missing) != 0 {
		t.Errorf("found %v, missing %v", found, missing)
	}
}

func TestTheFirstTimeOfAStateCounts(t *testing.T) {
	var h History
	names := []string{"worker0"}
	h.Reach("running", "worker0")
	first, _ := h.Reached("running", names)
	h.Reach("running", "worker0")
	second, _ := h.Reached("running", names)
	if first["worker0"] != second["worker0"] {
		t.Errorf("%v, then %v", first, second)
	}
	if _, missing := h.Reached("pod removed", names); len(missing) != 1 {
		t.Error("another state counts too")
	}
	h.Forget()
	if _, missing := h.Reached("running", names); len(missing) != 1 {
		t.Error("a forgotten time counts")
	}
}

func TestAPodWithoutANodeIsReportedByName(t *testing.T) {
	running := []string{"set-0", "set-1"}
	for _, test := range []struct {
		nodeOf map[string]string
		want   []string
	}{
		{map[string]string{"set-0": "node1", "set-1": "node2"}, nil},
		{map[string]string{"set-0": "node1", "set-1": ""}, []string{"pod set-1 has no node"}},
		{map[string]string{"set-0": "node1", "worker3": ""}, []string{"pod worker3 is left"}},
		{map[string]string{"set-0": "", "worker3": "node1"}, []string{"pod set-0 has no node", "pod worker3 is left"}},
	} {
		got := Unexpected(test.nodeOf, running)
		if (got == "") != (test.want == nil) {
			t.Errorf("%v: %q", test.nodeOf, got)
		}
		for _, want := range test.want {
			if !strings.Contains(got, want) {
				t.Errorf("%v: %q, without %q", test.nodeOf, got, want)
			}
		}
	}
}
