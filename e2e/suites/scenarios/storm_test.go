package scenarios

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rootcellar.dev/e2e/suites/harness"
)

var storms = []entry{
	{"drivers and provisioners are killed again and again while 20 claims are made and deleted: each is made once", manyKills},
}

// storm kills drivers and provisioners on both nodes, at different moments of each round.
type storm struct {
	kills atomic.Int32
	end   context.CancelFunc
	ended chan struct{}
}

func (s *scenario) storm() *storm {
	ctx, end := context.WithCancel(s.ctx())
	storm := &storm{end: end, ended: make(chan struct{})}
	go func() {
		defer close(storm.ended)
		for ctx.Err() == nil {
			for _, n := range nodes() {
				storm.strike(ctx, n)
			}
		}
	}()
	return storm
}

// strike kills both processes and then replaces the pod, because kubelet would wait longer before each restart.
func (st *storm) strike(ctx context.Context, n node) {
	for _, start := range []string{driverProcess, provisionerProcess} {
		pause(ctx, time.Duration(rand.IntN(1500))*time.Millisecond)
		if pid := processOf(n, start); pid != 0 && syscall.Kill(pid, syscall.SIGKILL) == nil {
			st.kills.Add(1)
		}
	}
	pause(ctx, time.Duration(rand.IntN(1500))*time.Millisecond)
	// The grace period is not 0, because the old registrar would then remove the socket of the new one.
	soon := int64(1)
	pods, err := harness.Client.CoreV1().Pods(harness.System).List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + n.name})
	if err != nil {
		return
	}
	for _, pod := range pods.Items {
		// If it fails, the next round tries again.
		_ = harness.Client.CoreV1().Pods(harness.System).Delete(ctx, pod.Name, metav1.DeleteOptions{GracePeriodSeconds: &soon})
	}
	pause(ctx, 2*time.Second)
}

func pause(ctx context.Context, length time.Duration) {
	select {
	case <-time.After(length):
	case <-ctx.Done():
	}
}

// passes waits until the storm has killed this many processes, and ends it.
func (st *storm) passes(s *scenario, kills int32) {
	s.Helper()
	s.Eventually("the storm", harness.Patience, func() string {
		if count := st.kills.Load(); count < kills {
			return fmt.Sprint(count, " kills")
		}
		return ""
	})
	st.end()
	<-st.ended
}

// Proves: K19.
func manyKills(s *scenario) {
	names := workers(20)
	storm := s.storm()
	for _, name := range names {
		s.worker(name, "rootcellar")
		pause(s.ctx(), time.Second)
	}
	storm.passes(s, 10)
	kills := storm.kills.Load()
	s.driverReady()
	for _, name := range names {
		s.running(name)
	}
	s.oneVolumeEach(names)

	storm = s.storm()
	for _, name := range names {
		s.dismiss(name)
		pause(s.ctx(), 500*time.Millisecond)
	}
	storm.passes(s, 10)
	s.driverReady()
	s.nothingLeft()
	s.Note = fmt.Sprintf(": %d kills", kills+storm.kills.Load())
}

// oneVolumeEach waits until each of the claims has one PersistentVolume and one directory, and no others exist.
func (s *scenario) oneVolumeEach(claims []string) {
	s.Helper()
	claims = slices.Sorted(slices.Values(claims))
	s.Eventually("each claim has one volume", harness.Patience, func() string {
		var bound, expected, found []string
		for _, volume := range s.volumes() {
			bound = append(bound, volume.Spec.ClaimRef.Name)
			expected = append(expected, s.directories(s.home(&volume), "default", volume.Name)...)
		}
		for _, n := range nodes() {
			found = append(found, s.directories(n, "default", s.Namespace+"_")...)
		}
		slices.Sort(bound)
		slices.Sort(expected)
		slices.Sort(found)
		if !slices.Equal(bound, claims) {
			return fmt.Sprintf("the PersistentVolumes are of the claims %q, and the claims are %q", bound, claims)
		}
		if len(found) != len(claims) || !slices.Equal(found, expected) {
			return fmt.Sprintf("the directories are %q, and belong to volumes %q", found, expected)
		}
		return ""
	})
}
