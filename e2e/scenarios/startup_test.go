package scenarios

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// crowd is the number of pods that start at once.
const crowd = 50

// TestStartup is no scenario. It measures, and writes the table of benches/results/startup.tsv.
func TestStartup(t *testing.T) {
	t.Cleanup(count)
	title := fmt.Sprintf("the time from claim to Running, beside pods with emptyDir, %d at once", crowd)
	t.Run(title, func(t *testing.T) { play(t, entry{title, startup}) })
}

// startup alternates between both kinds of pods, so that other work on the machine slows both.
func startup(s *scenario) {
	rounds := 5
	if text := os.Getenv("ROUNDS"); text != "" {
		var err error
		rounds, err = strconv.Atoi(text)
		s.must(err)
	}
	s.kustomized("apply", "default")
	s.driverReady()
	kinds := [2]func(name string){
		func(name string) {
			s.pod(name, with("data", "/data"), func(pod *corev1.Pod) {
				pod.Spec.Volumes[0].VolumeSource = corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}
			})
		},
		func(name string) { s.worker(name, "rootcellar") },
	}
	// For each kind: the time of every pod, and the figures of every round.
	var pods, p50, p99, all [2][]float64
	for round := range rounds {
		for turn := range kinds {
			kind := (round + turn) % 2
			each, last := s.start(kinds[kind])
			pods[kind] = append(pods[kind], each...)
			p50[kind] = append(p50[kind], percentile(each, 50))
			p99[kind] = append(p99[kind], percentile(each, 99))
			all[kind] = append(all[kind], last)
		}
	}

	table := "figure\tempty_dir\tclaim\tratio\tratio_in_single_rounds\n"
	row := func(figure string, empty, claim float64, rounds [2][]float64) {
		var ratios []float64
		for i := range rounds[0] {
			ratios = append(ratios, rounds[1][i]/rounds[0][i])
		}
		table += fmt.Sprintf("%s\t%.2f\t%.2f\t%.2f\t%.2f to %.2f\n",
			figure, empty, claim, percentile(ratios, 50), slices.Min(ratios), slices.Max(ratios))
	}
	row("p50, s", percentile(pods[0], 50), percentile(pods[1], 50), p50)
	row("p99, s", percentile(pods[0], 99), percentile(pods[1], 99), p99)
	row(fmt.Sprintf("all %d run, s", crowd), percentile(all[0], 50), percentile(all[1], 50), all)
	note := fmt.Sprintf("in the driver, CreateVolume took %.1f ms and NodePublishVolume %.1f ms on average\n",
		s.mean("CreateVolume"), s.mean("NodePublishVolume"))
	fmt.Print(table, note)
	for name, text := range map[string]string{"startup.tsv": table, "startup.note": note} {
		s.must(os.WriteFile(filepath.Join(os.Getenv("RUN"), name), []byte(text), 0o644))
	}
}

// start creates many pods at once, and removes them. It returns the seconds from the first request until each pod ran,
// and the seconds until all of them ran.
func (s *scenario) start(create func(name string)) (each []float64, all float64) {
	s.Helper()
	watch, err := client.CoreV1().Pods(s.namespace).Watch(s.ctx(), metav1.ListOptions{})
	s.must(err)
	defer func() { watch.Stop() }()
	var creating sync.WaitGroup
	var asked [crowd]time.Time
	begin := time.Now()
	for i := range crowd {
		creating.Go(func() {
			asked[i] = time.Now()
			create(fmt.Sprint("worker", i))
		})
	}
	ran := map[string]time.Time{}
	for late := time.After(patience); len(ran) < crowd; {
		select {
		case event, open := <-watch.ResultChan():
			if !open {
				// The API server ends a watch that lags behind. A new one starts with the present pods.
				watch, err = client.CoreV1().Pods(s.namespace).Watch(s.ctx(), metav1.ListOptions{})
				s.must(err)
				continue
			}
			pod, _ := event.Object.(*corev1.Pod)
			if pod == nil || pod.Status.Phase != corev1.PodRunning {
				continue
			}
			if _, seen := ran[pod.Name]; !seen {
				ran[pod.Name] = time.Now()
			}
		case <-late:
			s.Fatalf("%d of %d pods run after %v", len(ran), crowd, patience)
		}
	}
	all = time.Since(begin).Seconds()
	creating.Wait()
	for i, at := range asked {
		each = append(each, ran[fmt.Sprint("worker", i)].Sub(at).Seconds())
	}

	pods, err := client.CoreV1().Pods(s.namespace).List(s.ctx(), metav1.ListOptions{})
	s.must(err)
	s.kubectl("delete", "pods,pvc", "--all", "--timeout", patience.String())
	s.nothingLeft()
	for _, pod := range pods.Items {
		s.kubeletForgets(nodeNamed(pod.Spec.NodeName), &pod)
	}
	return each, all
}

// percentile returns the smallest value that is at least as large as this percentage of the values.
func percentile(values []float64, percent int) float64 {
	rank := math.Ceil(float64(len(values)*percent) / 100)
	return slices.Sorted(slices.Values(values))[int(rank)-1]
}

// mean returns the average duration of a call in the drivers of all nodes, in milliseconds.
func (s *scenario) mean(call string) float64 {
	s.Helper()
	line := regexp.MustCompile(`rootcellar_rpc_seconds_(sum|count)\{rpc="` + call + `",code="OK"\} (\S+)`)
	sums := map[string]float64{}
	for _, n := range nodes() {
		text, err := s.page(n, "/metrics")
		s.must(err)
		for _, match := range line.FindAllStringSubmatch(text, -1) {
			value, err := strconv.ParseFloat(match[2], 64)
			s.must(err)
			sums[match[1]] += value
		}
	}
	return sums["sum"] / sums["count"] * 1000
}
